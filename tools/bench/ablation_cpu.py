#!/usr/bin/env python3
"""The ablation table of the CPU backend: what each sharding and memory option costs and saves.

  python3 tools/bench/ablation_cpu.py [--ranks 2] [--steps 12] [--binary bazel-bin/tools/cli/millrace_cpu]

Trains the same model once per variant on synthetic tokens and reads the run's summary: counters come from the communicators and kernel arguments,
bytes from the plan's arena and from VmHWM. Times are the median step of the run with the 10th and 90th percentile; all variants alternate, so that
a busy machine disturbs all alike. Prints a Markdown table, with the command, machine and date on top.
"""
import argparse, datetime, json, os, platform, shutil, statistics, subprocess, sys, tempfile

MODEL = {
    "model": {"family": "llama", "layers": 6, "d_model": 128, "heads": 4, "ffn": 384, "seq_len": 64, "tied": False},
    "data": {"kind": "synthetic"},
    "train": {"micro_batch": 2, "accumulate": 8},
    "precision": {"compute": "bf16"},
    "sharding": {"grad_sync": "last"},
    "checkpoint": {"every": 0, "keep": 1},
}
BASE = "base: per_gather, direct, last, packed, prefetch 1"
VARIANTS = [
    (BASE, ["sharding.downcast=per_gather"]),
    ("downcast after_gather", ["sharding.downcast=after_gather"]),
    ("downcast after_update", ["sharding.downcast=after_update"]),
    ("concat last", ["sharding.downcast=per_gather", "sharding.grad_concat=last"]),
    ("concat every", ["sharding.downcast=per_gather", "sharding.grad_concat=every"]),
    ("sync every, concat direct", ["sharding.downcast=per_gather", "sharding.grad_sync=every"]),
    ("sync every, concat every", ["sharding.downcast=per_gather", "sharding.grad_sync=every", "sharding.grad_concat=every"]),
    ("allocator coloured", ["sharding.downcast=per_gather", "memory.allocator=coloured"]),
    ("allocator max_pool", ["sharding.downcast=per_gather", "memory.allocator=max_pool"]),
    ("allocator fixed", ["sharding.downcast=per_gather", "memory.allocator=fixed"]),
    ("allocator persistent", ["sharding.downcast=per_gather", "memory.allocator=persistent"]),
    ("allocator dynamic", ["sharding.downcast=per_gather", "memory.allocator=dynamic"]),
    ("prefetch 0", ["sharding.downcast=per_gather", "memory.prefetch=0"]),
    ("prefetch 2", ["sharding.downcast=per_gather", "memory.prefetch=2"]),
    ("reshard after_backward", ["sharding.downcast=per_gather", "sharding.reshard=after_backward"]),
    ("reshard never", ["sharding.downcast=per_gather", "sharding.reshard=never"]),
    ("recompute norms", ["sharding.downcast=per_gather", "memory.recompute=norms"]),
    ("recompute block", ["sharding.downcast=per_gather", "memory.recompute=block"]),
]


def run(args, config, sets, folder):
    command = ["mpirun", "-n", str(args.ranks), "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", args.binary, "train", config]
    for item in sets + [f"train.steps={args.steps}", f"run.dir={folder}"]:
        command += ["--set", item]
    env = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
    with open(os.path.join(folder, "metrics.jsonl")) as lines:
        steps = [json.loads(line) for line in lines]
    with open(os.path.join(folder, "summary.json")) as text:
        return [s["step_ms"] for s in steps if "step_ms" in s][2:], json.load(text)


def mib(count):
    return f"{count / 2**20:.2f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--binary", default="bazel-bin/tools/cli/millrace_cpu")
    args = parser.parse_args()
    root = tempfile.mkdtemp(prefix="ablation_")
    config = os.path.join(root, "config.json")
    with open(config, "w") as out:
        json.dump(MODEL, out)
    times = {name: [] for name, _ in VARIANTS}
    summaries = {}
    for turn in range(args.rounds):
        for index, (name, sets) in enumerate(VARIANTS):
            step_ms, summaries[name] = run(args, config, sets, os.path.join(root, f"{turn}_{index}"))
            times[name] += step_ms
    print(f"`python3 tools/bench/ablation_cpu.py --ranks {args.ranks} --steps {args.steps} --rounds {args.rounds}`, "
          f"{platform.machine()} with {os.cpu_count()} cores, {datetime.date.today()}. "
          "Llama, 6 layers of 128, T 64, B 2, accumulate 8, bf16 compute; rank 0.\n")
    print("| variant | step ms (p10, p90) | gathered MiB/step | reduced MiB/step | gathers | reduces | cast MiB/step | concat MiB/step | arena MiB | peak RSS MiB | same bits as base |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, _ in VARIANTS:
        s, t = summaries[name], sorted(times[name])
        c = s["counters"]
        per = lambda key: c[key] / args.steps
        same = "yes" if s["param_hash"] == summaries[BASE]["param_hash"] else "no"
        print(f"| {name} | {statistics.median(t):.1f} ({t[len(t) // 10]:.1f}, {t[len(t) * 9 // 10]:.1f}) | {mib(per('bytes_gathered'))} | "
              f"{mib(per('bytes_reduced'))} | {per('gathers'):.0f} | {per('reduces'):.0f} | {mib(per('bytes_cast'))} | {mib(per('bytes_concatenated'))} | "
              f"{mib(s['measured']['arena_bytes'])} | {mib(s['peak_bytes'])} | {same} |")
    shutil.rmtree(root)


main()
