#!/usr/bin/env python3
"""Writes configs/hybrid/*.json: the parameter buckets of three published hybrid stacks, one layer per unit, bf16.

The shapes are those of NVIDIA's published model configs: Nemotron-3-Nano, its 128 experts over 8 ranks (ep8) or all on each
rank (ep1), and Nemotron-H-8B. A character of the pattern is a layer: M Mamba-2, * attention, - MLP, E mixture of experts.

    python3 tools/bench/hybrid_configs.py            # rewrite the files
    python3 tools/bench/hybrid_configs.py --check    # exit 1 if a file differs from what would be written
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "configs" / "hybrid"


def mamba(h, heads, head_dim, groups, state):
    inner = heads * head_dim
    conv = inner + 2 * groups * state  # channels of the causal convolution, width 4 and a bias
    in_proj = h * (2 * inner + 2 * groups * state + heads)
    # A_log, D and dt_bias per head; the gated norm's weight; the block's norm.
    return [in_proj + inner * h + conv * 5 + 3 * heads + inner + h]


def attention(h, q_heads, kv_heads, head_dim=128):
    return [h * (q_heads + 2 * kv_heads) * head_dim + q_heads * head_dim * h + h]


def mlp(h, ffn):  # squared ReLU: no gate
    return [2 * h * ffn + h]


def moe(h, experts, ranks, moe_ffn, shared_ffn):
    # Routed experts are sharded over their own group of ranks, so they are a bucket apart from the shared
    # expert, the router with its correction bias, and the norm.
    routed = experts // ranks * 2 * h * moe_ffn
    shared = 2 * h * shared_ffn + experts * h + experts + h
    return [routed, shared]


def nano(expert_ranks):
    h = 2688
    return {
        "M": mamba(h, heads=64, head_dim=64, groups=8, state=128),
        "*": attention(h, q_heads=32, kv_heads=2),
        "E": moe(h, experts=128, ranks=expert_ranks, moe_ffn=1856, shared_ffn=3712),
    }, "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"


def nemotron_h_8b():
    h = 4096
    return {
        "M": mamba(h, heads=128, head_dim=64, groups=8, state=128),
        "*": attention(h, q_heads=32, kv_heads=8),
        "-": mlp(h, ffn=21504),
    }, "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"


def text(kinds, pattern):
    units = []
    for kind, buckets in kinds.items():
        rows = ", ".join(json.dumps({"dtype": "bf16", "numel": n}) for n in buckets)
        units.append(f'      {{"kind": "{kind}", "buckets": [{rows}]}}')
    body = ",\n".join(units)
    return f'{{\n  "pool": {{\n    "prefetch": 1,\n    "units": [\n{body}\n    ],\n    "pattern": "{pattern}"\n  }}\n}}\n'


def main():
    files = {
        "nemotron_3_nano_ep8.json": text(*nano(expert_ranks=8)),
        "nemotron_3_nano_ep1.json": text(*nano(expert_ranks=1)),
        "nemotron_h_8b.json": text(*nemotron_h_8b()),
    }
    if sys.argv[1:] == ["--check"]:
        stale = [n for n, t in files.items() if not (FOLDER / n).exists() or (FOLDER / n).read_text() != t]
        if stale:
            sys.exit(f"configs/hybrid differs from tools/bench/hybrid_configs.py: {', '.join(stale)}")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (FOLDER / name).write_text(content)


if __name__ == "__main__":
    main()
