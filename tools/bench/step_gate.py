#!/usr/bin/env python3
"""Step times of two programs, run in turn on the same GPUs: what a change that may cost no time is held against.

  python3 -B tools/bench/step_gate.py OLD_PROGRAM NEW_PROGRAM --out FILE.json [--ranks 2] [--rounds 3] [--case CONFIG[:key=value,...]]...

Each round runs each case by both programs, the old one first in odd rounds, the new one in even ones. Prints per case the median of all rounds' steps with
its 10th and 90th percentile, new over old, and the spread of that ratio over rounds; FILE has every step's time. Exit code 1: a ratio is above --most (1.01)
in more than half of the rounds, or a run failed. Standard library only.
"""
import argparse, datetime, json, pathlib, sys
import results, runs

CONFIGS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs"
CASES = ["gpt2_30m:train.micro_batch=4", "gpt2_124m:train.micro_batch=4", "gpt2_124m:train.micro_batch=64"]
COMMON = ["data.kind=synthetic", "checkpoint.every=0", "execution.tune=false"]


def one(program, case, steps, warmup):
    """Times of the steps of one run, in ms."""
    name, _, sets = case.partition(":")
    return program.bench(str(CONFIGS / f"{name}.json"), COMMON + [s for s in sets.split(",") if s], steps, warmup)["step_ms_samples"]


def row(case, samples):
    """One line of the table, and whether the new program is slower in more rounds than not. samples: by round (old, new)."""
    old, new = ([ms for pair in samples for ms in pair[i]] for i in (0, 1))
    ratios = sorted(results.quantile(b, 0.5) / results.quantile(a, 0.5) for a, b in samples)
    text = [f"{results.quantile(s, 0.5):.2f} ({results.quantile(s, 0.1):.2f}, {results.quantile(s, 0.9):.2f})" for s in (old, new)]
    ratio = results.quantile(new, 0.5) / results.quantile(old, 0.5)
    return f"| {case} | {text[0]} | {text[1]} | {ratio:.4f} | {ratios[0]:.4f} to {ratios[-1]:.4f} |", ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--out", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--most", type=float, default=1.01)
    parser.add_argument("--case", action="append", dest="cases")
    args = parser.parse_args()
    programs = [runs.Program(binary, args.ranks) for binary in (args.old, args.new)]
    found = {"date": datetime.date.today().isoformat(), "device": runs.host_of(args.new), "old": results.commit_of(args.old), "new": results.commit_of(args.new), "cases": {}}
    slower = False
    print("| case | old, ms | new, ms | new / old | by round |\n|---|--:|--:|--:|--:|")
    for case in args.cases or CASES:
        samples = []
        for round_ in range(args.rounds):
            pair = [None, None]
            for i in (0, 1) if round_ % 2 == 0 else (1, 0):
                pair[i] = one(programs[i], case, args.steps, args.warmup)
            samples.append(pair)
        found["cases"][case] = samples
        pathlib.Path(args.out).write_text(json.dumps(found))
        text, ratios = row(case, samples)
        print(text, flush=True)
        slower |= sum(ratio > args.most for ratio in ratios) * 2 > len(ratios)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
