#!/usr/bin/env python3
"""mamba_ssm's Triton kernels of the SSD scan at the sizes of ssd_bench (tests/kernels/cuda): ms forward and backward, on this GPU.

  python3 tools/bench/peers/torch_ssd.py [SECONDS [BATCH LENGTH HEADS]...]

Heads of 64, 8 groups, state 128; bf16, dt, A and D f32. Each chunk and size is called for SECONDS (1) in a row, forward and backward apart,
so that the power cap is in force as in training: the median of replays of a CUDA graph of ten calls, as launching them from Python takes longer
than the small ones run. mamba_ssm's folders ops/triton and utils must be importable.
"""
import sys

import torch
from mamba_ssm.ops.triton.ssd_combined import _mamba_chunk_scan_combined_bwd, _mamba_chunk_scan_combined_fwd

HEAD, GROUPS, STATE = 64, 8, 128


def milliseconds(call, seconds):
    for _ in range(3):  # their kernels are chosen, too
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    replays = []
    while sum(replays) * 10 < seconds * 1e3 or len(replays) < 5:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        replays.append(begin.elapsed_time(end) / 10)
    return sorted(replays)[len(replays) // 2]


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    named = [int(n) for n in sys.argv[2:]]
    sizes = list(zip(named[::3], named[1::3], named[2::3])) or [(2, 4096, 64), (1, 8192, 64), (2, 4096, 128)]
    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n\n| B T H | chunk | forward, ms | backward | both |\n|---|---|---|---|---|")
    for batch, length, heads in sizes:
        x = torch.randn(batch, length, heads, HEAD, device="cuda").bfloat16()
        b, c = (torch.randn(batch, length, GROUPS, STATE, device="cuda").bfloat16() for _ in range(2))
        # The steps and rates that Mamba-2 begins with.
        dt = 0.001 * 100 ** torch.rand(batch, length, heads, device="cuda")
        a, d = -1 - 15 * torch.rand(heads, device="cuda"), torch.ones(heads, device="cuda")
        for chunk in (128, 256):
            y = _mamba_chunk_scan_combined_fwd(x, dt, a, b, c, chunk, D=d)[0]
            dy = torch.randn_like(y)
            forward = milliseconds(lambda: _mamba_chunk_scan_combined_fwd(x, dt, a, b, c, chunk, D=d), seconds)
            backward = milliseconds(lambda: _mamba_chunk_scan_combined_bwd(dy, x, dt, a, b, c, y, chunk, D=d), seconds)
            print(f"| {batch} {length} {heads} | {chunk} | {forward:.3f} | {backward:.3f} | {forward + backward:.3f} |", flush=True)


if __name__ == "__main__":
    main()
