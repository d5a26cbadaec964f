#!/usr/bin/env python3
"""What kinds of work take of a GPU's power cap: products alone, then with copies, attention or waits between them, each mix for 1.6 seconds.

  CUDA_VISIBLE_DEVICES=0 python3 tools/bench/peers/torch_power.py OUT.json

Where the cap is in force, a mix takes longer than products alone by what the rest takes of it, whatever the clock. Beside it run
`nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw.instant,temperature.gpu --format=csv -lms 50`. Numbers are random: zeros draw less.
"""
import json, sys, time
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

WARM = 1 / 3  # of a mix's time, that is not printed: clocks settle


def noise(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main():
    torch.manual_seed(0)
    a, b, out = noise(8192, 8192), noise(8192, 8192), noise(8192, 8192)
    long_a, long_b, long_out = noise(16384, 2048), noise(2048, 8192), noise(16384, 8192)
    source = torch.empty(1 << 29, device="cuda", dtype=torch.uint8).random_()
    copy = torch.empty_like(source)
    q, k, v = (noise(4, 32, 4096, 64).requires_grad_() for _ in range(3))
    d_out = noise(4, 32, 4096, 64)

    def attend():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).backward(d_out)
        q.grad = k.grad = v.grad = None

    work = {"mm": lambda: torch.mm(a, b, out=out), "mm2": lambda: torch.mm(long_a, long_b, out=long_out), "cp": lambda: copy.copy_(source), "at": attend,
            "sl": lambda: torch.cuda._sleep(int(1.6 * 1.8e6))}

    def event():
        found = torch.cuda.Event(enable_timing=True)
        found.record()
        return found

    mixes = []
    for cycle in ({"mm": 4}, {"mm2": 6}, {"cp": 8}, {"mm": 3, "cp": 4}, {"mm": 2, "cp": 8}, {"mm": 1, "cp": 8}, {"at": 2}, {"mm": 4, "at": 2}, {"mm": 3, "sl": 1},
                  {"mm": 2, "sl": 1}, {"mm": 1, "sl": 1}):
        for what in cycle:
            work[what]()
        torch.cuda.synchronize()
        began, rows = time.time(), []
        while time.time() - began < 1.6:
            marks = [event()]
            for what, calls in cycle.items():
                for _ in range(calls):
                    work[what]()
                marks.append(event())
            marks[-1].synchronize()
            rows.append((time.time(), [first.elapsed_time(second) for first, second in zip(marks, marks[1:])]))
        late = [parts for at, parts in rows if at - began > 1.6 * WARM]
        middle = [sorted(column)[len(column) // 2] for column in zip(*late)]
        mixes.append({"cycle": cycle, "began": began, "ended": time.time(), "ms": rows})
        print(cycle, f"{sum(middle):.3f} ms:", ", ".join(f"{what} {ms / calls:.4f}" for (what, calls), ms in zip(cycle.items(), middle)), flush=True)
    with open(sys.argv[1], "w") as file:
        json.dump(mixes, file)


if __name__ == "__main__":
    main()
