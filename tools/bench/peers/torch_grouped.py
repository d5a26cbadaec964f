#!/usr/bin/env python3
"""torch._grouped_mm on the shapes and loads of grouped_bench (tests/kernels/cuda): TFLOP/s of each product, on this GPU.

  python3 tools/bench/peers/torch_grouped.py

bf16 in and out, operands uniform in (-1, 1); of each product the median of seven rounds of at least 40 ms. Zipf: expert e has rows in
proportion to 1 / (e + 1). The last line is a dense product of 8192 x 8192 x 8192, by which cards can be compared.
"""
import torch

ROWS, IN, OUT = 49152, 2688, 1856
EXPERTS = (128, 32, 16)


def milliseconds(call):
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)

    def round_of(calls):
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / calls

    round_of(3)
    calls = max(1, int(40 / round_of(3)))
    return sorted(round_of(calls) for _ in range(7))[3]


def random(*dims):
    return (torch.rand(*dims, device="cuda") * 2 - 1).bfloat16()


def ends_of(experts, zipf):
    """Where each expert's rows end, i32 on the GPU."""
    shares = torch.tensor([1 / (e + 1) if zipf else 1.0 for e in range(experts)], dtype=torch.float64)
    ends = (shares.cumsum(0) / shares.sum() * ROWS + 0.5).int()
    ends[-1] = ROWS
    return ends.to("cuda")


def main():
    x, d_y = random(ROWS, IN), random(ROWS, OUT)
    for experts in EXPERTS:
        weight = random(experts, OUT, IN)
        for zipf in (False, True):
            ends = ends_of(experts, zipf)
            calls = (lambda: torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends),
                     lambda: torch._grouped_mm(d_y, weight, offs=ends),
                     lambda: torch._grouped_mm(d_y.t(), x, offs=ends))
            found = [2.0 * ROWS * IN * OUT / milliseconds(call) / 1e9 for call in calls]
            print("torch", experts, "zipf" if zipf else "even", "forward %.1f input %.1f weight %.1f" % tuple(found), flush=True)
    a, b = random(8192, 8192), random(8192, 8192)
    print("dense 8192 %.1f" % (2 * 8192**3 / milliseconds(lambda: a @ b) / 1e9))


if __name__ == "__main__":
    main()
