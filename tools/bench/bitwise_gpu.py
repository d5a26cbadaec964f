#!/usr/bin/env python3
"""The promise of deterministic execution at benchmark sizes: options that may not change a bit do not.

  python3 tools/bench/bitwise_gpu.py CONFIG [--ranks 1] [--steps 100] [--only NAME,...] [--binary bin/millrace] [--set key=value]... [--out FILE.json]

Trains CONFIG once per option on synthetic tokens with execution.deterministic=true and compares every loss's bits, every
gradient norm and the hashes of parameters and moments with those of the first run. One more run stops half-way and is resumed. Algorithms
are tuned once, by the first run, for all of them.
Prints a Markdown table, and keeps its rows in FILE.json; exit code 1 when anything differs.
"""
import argparse, datetime, json, os, shutil, sys, tempfile
import results, runs

OPTIONS = [
    ("base: graph step", []),
    ("again", []),
    ("graph off", ["execution.graph=off"]),
    ("graph microbatch", ["execution.graph=microbatch"]),
    ("programmatic launch off", ["execution.programmatic_launch=off"]),
    ("programmatic launch begin", ["execution.programmatic_launch=begin"]),
    ("weight gradients beside", ["execution.overlap_weight_gradients=true"]),
    ("allocator coloured", ["memory.allocator=coloured"]),
    ("allocator max_pool", ["memory.allocator=max_pool"]),
    ("allocator fixed", ["memory.allocator=fixed"]),
    ("allocator persistent", ["memory.allocator=persistent"]),
    ("allocator dynamic", ["memory.allocator=dynamic"]),
    ("prefetch 0", ["memory.prefetch=0"]),
    ("prefetch 2", ["memory.prefetch=2"]),
    ("downcast per_gather", ["sharding.downcast=per_gather"]),
    ("downcast after_gather", ["sharding.downcast=after_gather"]),
    ("reshard never", ["sharding.reshard=never"]),
    ("reshard after_backward", ["sharding.reshard=after_backward"]),
    ("recompute norms", ["memory.recompute=norms"]),
    ("recompute block", ["memory.recompute=block"]),
]
BASE = ["data.kind=synthetic", "execution.deterministic=true", "sharding.grad_sync=last", "checkpoint.every=0", "train.eval_every=0",
        # What options are compared with, whatever CONFIG says: as many gathers as there can be, on streams of their own.
        "sharding.blocks_per_unit=1", "sharding.reshard=after_forward", "execution.overlap_weight_gradients=false"]
# Concats differ only where gradients are kept over microbatches: these runs have two, and a base of their own.
TWO = ["train.accumulate=2"]
CONCATS = [("concat direct, accumulate 2", TWO), ("concat last, accumulate 2", TWO + ["sharding.grad_concat=last"]),
           ("concat every, accumulate 2", TWO + ["sharding.grad_concat=every"])]
# Over the memory of peers sums have rank order: with two ranks that changes no bit, with more these runs have a base of their own.
PEER = ["execution.peer_memory=on"]
PEERS = [("peer memory", PEER), ("peer memory, again", PEER), ("peer memory, graph off", PEER + ["execution.graph=off"]),
         ("peer memory, graph microbatch", PEER + ["execution.graph=microbatch"]),
         ("peer memory, programmatic launch begin", PEER + ["execution.programmatic_launch=begin"]),
         ("peer memory, reshard never", PEER + ["sharding.reshard=never"]),
         ("peer memory, downcast per_gather", PEER + ["sharding.downcast=per_gather"]),
         ("peer memory, downcast in_gather", PEER + ["sharding.downcast=in_gather"])]


def bits(steps, summary):
    return [(s["step"], s["loss_bits"], s["grad_norm"]) for s in steps] + [summary["param_hash"], summary["optimizer_hash"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--binary", default="bin/millrace")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out")
    args = parser.parse_args()
    program = runs.Program(args.binary, args.ranks)
    chosen = [o for o in OPTIONS if not args.only or o[0] in args.only.split(",") or o is OPTIONS[0]]
    root = tempfile.mkdtemp(prefix="bitwise_")
    common = BASE + args.set + [f"execution.tuning_file={root}/tuning.json"]  # one choice of algorithms for all runs
    unsaved = common + ["checkpoint.at_end=false"]  # all but what is resumed
    rows, base, failed = [], None, 0

    def record(name, steps, summary):
        nonlocal base, failed
        found = bits(steps, summary)
        base = base or found
        same = found == base
        failed += not same
        first = next((a[0] for a, b in zip(found, base) if a != b), None) if not same else None
        step_ms = sorted(s["step_ms"] for s in steps[2:])
        rows.append((name, "same" if same else f"differ from step {first}", steps[-1]["loss"], step_ms[len(step_ms) // 2],
                     summary["plan_hash"][:12]))
        print(f"  {name}: {rows[-1][1]}", file=sys.stderr, flush=True)

    try:
        for i, (name, sets) in enumerate(chosen):
            record(name, *program.train(args.config, unsaved + sets + [f"train.steps={args.steps}"], os.path.join(root, str(i))))
            shutil.rmtree(os.path.join(root, str(i)))
        if args.ranks > 1 and (not args.only or "peers" in args.only.split(",")):
            base = base if args.ranks == 2 else None
            for i, (name, sets) in enumerate(PEERS):
                steps, summary = program.train(args.config, unsaved + sets + [f"train.steps={args.steps}"], os.path.join(root, f"p{i}"))
                if not summary["peer_memory"]:
                    sys.exit(f"{name}: summary.json says that peers' memory was not in use")
                record(name, steps, summary)
                shutil.rmtree(os.path.join(root, f"p{i}"))
        if not args.only or "concat" in args.only.split(","):
            base = None
            for i, (name, sets) in enumerate(CONCATS):
                record(name, *program.train(args.config, unsaved + sets + [f"train.steps={args.steps}"], os.path.join(root, f"c{i}")))
                shutil.rmtree(os.path.join(root, f"c{i}"))
        if not args.only or "resume" in args.only.split(","):
            folder, half = os.path.join(root, "resume"), args.steps // 2
            # The learning rate looks ahead to train.steps: the first half is a run that is stopped, not a shorter one.
            program.train(args.config, common + [f"train.steps={half}", f"optimizer.schedule.decay_steps={args.steps}"], folder)
            whole = os.path.join(root, "whole")
            steps, summary = program.train(
                args.config, common + [f"train.steps={args.steps}", f"optimizer.schedule.decay_steps={args.steps}"], whole)
            base = bits(steps, summary)
            record("not stopped, decay_steps given", steps, summary)
            record("stopped half-way and resumed", *program.train(
                args.config, common + [f"train.steps={args.steps}", f"optimizer.schedule.decay_steps={args.steps}"], folder))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    options = "".join(f" --set {s}" for s in args.set) + (f" --only '{args.only}'" if args.only else "")
    command, host = f"python3 tools/bench/bitwise_gpu.py {args.config} --ranks {args.ranks} --steps {args.steps}{options}", runs.host_of(args.binary)
    print(f"\n`{command}`, {host}, {datetime.date.today()}; deterministic.\n")
    print("| option | losses, norms, hashes | last loss | step ms (median) | plan |\n|---|---|---|---|---|")
    for name, verdict, loss, step_ms, plan in rows:
        print(f"| {name} | {verdict} | {loss:.6f} | {step_ms:.2f} | {plan} |")
    if args.out:
        keys = ("option", "verdict", "last_loss", "step_ms", "plan")
        with open(args.out, "w") as file:
            json.dump(dict(device=host, date=str(datetime.date.today()), sources=results.commit_of(args.binary), command=command,
                           rows=[dict(zip(keys, row)) for row in rows]), file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
