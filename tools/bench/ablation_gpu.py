#!/usr/bin/env python3
"""What each of the mechanisms behind Millrace costs and saves on GPUs: downcast, concat, synchronisation, allocators, graphs.

  python3 tools/bench/ablation_gpu.py --ranks 2 [--steps 20] [--groups downcast,slow,peers,peers_llama,concat,allocators,graphs] [--binary bin/millrace]

One `millrace bench` per row, on synthetic tokens. Prints a Markdown table per group, with the command, machine and date: median step
time with the 10th and 90th percentile, host time to issue a step, bytes per step and rank from communicators and kernel arguments, arena, and
most device memory in use. `slow` is `downcast` again with NCCL_P2P_DISABLE=1, the slow link of the figure that it goes back to. `peers` and
`peers_llama` are it over the memory of peers, where `in_gather` casts in the kernel that stores into them.
"""
import argparse, datetime, os, shutil, sys, tempfile
import runs

DOWNCASTS = [("after_gather", ["sharding.downcast=after_gather"]), ("per_gather", ["sharding.downcast=per_gather"]),
             ("after_update", ["sharding.downcast=after_update"])]
IN_GATHER = [("in_gather", ["sharding.downcast=in_gather"]), ("per_gather, again", ["sharding.downcast=per_gather"])]
SUMS = ["train.accumulate=8", "train.micro_batch=8", "sharding.grad_sync=last"]
GRAPHS = [(f"B {b}, graph {g}", [f"train.micro_batch={b}", f"execution.graph={g}"]) for b in (4, 64) for g in ("off", "microbatch", "step")]
GROUPS = {
    "downcast": ("configs/gpt2_355m.json", ["train.micro_batch=8", "precision.grad_wire=fp32"], {}, DOWNCASTS),
    "slow": ("configs/gpt2_355m.json", ["train.micro_batch=8", "precision.grad_wire=fp32"], {"NCCL_P2P_DISABLE": "1"}, DOWNCASTS),
    "peers": ("configs/gpt2_355m.json", ["train.micro_batch=8", "precision.grad_wire=fp32", "execution.peer_memory=on"], {}, DOWNCASTS + IN_GATHER),
    "peers_llama": ("configs/llama_1b.json", ["train.micro_batch=4", "execution.peer_memory=on"], {}, DOWNCASTS + IN_GATHER),
    "concat": ("configs/gpt2_355m.json", [], {}, [
        ("concat every, sync last", SUMS + ["sharding.grad_concat=every"]),
        ("concat last, sync last", SUMS + ["sharding.grad_concat=last"]),
        ("concat direct, sync last", SUMS + ["sharding.grad_concat=direct"]),
        ("concat every, sync every", SUMS + ["sharding.grad_sync=every", "sharding.grad_concat=every"]),
        ("concat direct, sync every", SUMS + ["sharding.grad_sync=every", "sharding.grad_concat=direct"]),
    ]),
    # Unequal units: the embedding is seven times a block.
    "allocators": ("configs/llama_1b.json", ["train.micro_batch=1", "model.seq_len=2048"], {},
                   [(a, [f"memory.allocator={a}"]) for a in ("persistent", "fixed", "max_pool", "coloured", "packed", "dynamic")]),
    "graphs": ("configs/gpt2_124m.json", ["sharding.blocks_per_unit=1", "sharding.reshard=after_forward"], {}, GRAPHS),
}


def mib(count):
    return f"{count / 2**20:.1f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--binary", default="bin/millrace")
    args = parser.parse_args()
    program, root = runs.Program(args.binary, args.ranks), tempfile.mkdtemp(prefix="ablation_")
    print(f"`python3 tools/bench/ablation_gpu.py --ranks {args.ranks} --steps {args.steps} --groups {args.groups}`, "
          f"{runs.host_of(args.binary)}, {datetime.date.today()}; bytes in MiB per step and rank.")
    try:
        for group in args.groups.split(","):
            config, sets, env, rows = GROUPS[group]
            text = [config, *sets, *(f"{k}={v}" for k, v in env.items())]
            print(f"\n{group}: {', '.join(text)}\n\n| variant | step ms (p10, p90) | host us | gathered | reduced | cast | concatenated | "
                  "arena GiB | device GiB |\n|---|---|---|---|---|---|---|---|---|", flush=True)
            for name, more in rows:
                tuning = [f"run.dir={root}", f"execution.tuning_file={root}/{group}.json"]
                b = program.bench(config, sets + more + tuning, args.steps, 5, env=env)
                print(f"| {name} | {b['step_ms']:.2f} ({b['step_ms_p10']:.2f}, {b['step_ms_p90']:.2f}) | {b['host_us_per_step']:.0f} | "
                      f"{mib(b['gathered_bytes_per_step'])} | {mib(b['reduced_bytes_per_step'])} | {mib(b['cast_bytes_per_step'])} | "
                      f"{mib(b['concatenated_bytes_per_step'])} | {b['arena_bytes'] / 2**30:.2f} | {b['peak_bytes'] / 2**30:.2f} |", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
