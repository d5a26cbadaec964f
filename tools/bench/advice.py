#!/usr/bin/env python3
"""Whether `plan --advise` advises well: twelve plans drawn before anything is measured, then measured in turn on the host that the machine file is of.

  python3 -B tools/bench/advice.py configs/gpt2_124m.json --ranks 2 --machine FILE --out FILE.json [--budget-s S]

The twelve: the five that `plan --advise` prints first, and seven that differ from the first in one choice each (mesh, micro batch and accumulate, recompute, reshard, prefetch),
drawn from all of those by a fixed seed; tokens per step are the same. The file has the drawn plans with their predicted times before the first is run, then every sample. A run
goes on where its budget ended it. Printed: a table, and how far the first is from the best. Standard library only.
"""
import argparse, itertools, json, random, subprocess, sys, time
import results, runs

MESH = ("parallel.replicate", "parallel.shard", "parallel.context", "parallel.tensor")
CHOICES = {"memory.recompute": ("none", "norms", "block"), "sharding.reshard": ("never", "after_backward", "after_forward"), "memory.prefetch": ("0", "1", "2")}
DRAWN, SEED = 7, 20261123


def keys_of(choices):
    return dict(word.split("=", 1) for word in choices.split())


def neighbours(first, ranks):
    """What differs from `first` in one choice, at the same tokens per step."""
    found = []
    def add(**changed):
        other = dict(first, **changed)
        if int(other["parallel.replicate"]) == ranks:  # weights are used where they lie: nothing is gathered
            other = {key: value for key, value in other.items() if key not in ("sharding.reshard", "memory.prefetch")}
        if other != first and other not in found:
            found.append(other)
    for key, values in CHOICES.items():
        for value in values:
            add(**{key: value})
    batch, accumulate = int(first["train.micro_batch"]), int(first["train.accumulate"])
    for factor in (2, 4):
        if batch % factor == 0:
            add(**{"train.micro_batch": str(batch // factor), "train.accumulate": str(accumulate * factor)})
        if accumulate % factor == 0:
            add(**{"train.micro_batch": str(batch * factor), "train.accumulate": str(accumulate // factor)})
    sequences = batch * accumulate * ranks // (int(first["parallel.context"]) * int(first["parallel.tensor"]))
    for replicate, shard, context, tensor in itertools.product(range(1, ranks + 1), repeat=4):
        if replicate * shard * context * tensor == ranks and sequences % (replicate * shard * accumulate) == 0:
            mesh = dict(zip(MESH, map(str, (replicate, shard, context, tensor))))
            add(**mesh, **{"train.micro_batch": str(sequences // (replicate * shard * accumulate))})
    return found


def as_sets(plan):
    return [f"{key}={value}" for key, value in plan.items()]


def predicted_ms(args, plan):
    """Or None where the program refuses it."""
    command = [args.binary, "plan", args.config, "--world", str(args.ranks), "--machine", args.machine, "--json"]
    for item in as_sets(plan):
        command += ["--set", item]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout)["time"]["step_s"] * 1e3 if done.returncode == 0 else None


def draw(args):
    """[{"plan", "predicted_ms", "what"}], first the advice."""
    said = subprocess.run([args.binary, "plan", args.config, "--world", str(args.ranks), "--machine", args.machine, "--advise", "--json"], check=True,
                          capture_output=True, text=True).stdout
    best = [dict(plan=keys_of(row["choices"]), predicted_ms=row["step_s"] * 1e3, what=f"advised, {place}") for place, row in enumerate(json.loads(said)["best"], 1)]
    first, others = best[0]["plan"], []
    candidates = [plan for plan in neighbours(first, args.ranks) if plan not in [row["plan"] for row in best]]
    random.Random(SEED).shuffle(candidates)
    for plan in candidates:
        if len(others) < DRAWN and (guess := predicted_ms(args, plan)) is not None:
            changed = [f"{key.split('.')[1]} {value}" for key, value in plan.items() if first[key] != value]
            others.append(dict(plan=plan, predicted_ms=guess, what=", ".join(changed)))
    return best + others


def measure(args, kept, drawn):
    program, begin, whole = runs.Program(args.binary, args.ranks), time.monotonic(), True
    for round_ in range(1, args.rounds + 1):
        for number, row in enumerate(drawn):
            row_id, asked = f"plan/{number}/{round_}", json.dumps([args.config, row["plan"], args.steps])
            if kept.has(row_id, asked):
                continue
            if time.monotonic() - begin + (kept.seconds_of("plan") or 20) > args.budget_s:
                whole = False
                continue
            began = time.monotonic()
            sets = as_sets(row["plan"])
            flags = ["--steps", str(args.steps), "--warmup", "5", "--json"]
            done = subprocess.run(program.command("bench", args.config, sets, flags), capture_output=True, text=True)
            line = dict(error=done.stderr.strip().splitlines()[-1][:300]) if done.returncode else \
                dict(result=dict(step_ms_samples=json.loads(done.stdout)["step_ms_samples"], what=row["what"], predicted_ms=row["predicted_ms"]))
            kept.add("plan", str(number), round_, asked, f"bench {args.config} " + " ".join(sets), time.monotonic() - began, **line)
    return whole


def table(kept, drawn):
    print("| plan | predicted ms | measured ms |\n|---|--:|--:|")
    medians = []
    for number, row in enumerate(drawn):
        found = [r for r in kept.data["rows"] if r["variant"] == str(number)]
        samples = [ms for r in found if "result" in r for ms in r["result"]["step_ms_samples"]]
        medians.append(results.quantile(samples, 0.5) if samples else None)
        said = "{:.2f} ({:.2f}, {:.2f})".format(*results.spread(samples)) if samples else "; ".join(sorted({r["error"] for r in found})) or "not run"
        print(f"| {row['what']} | {row['predicted_ms']:.2f} | {said} |")
    there = [ms for ms in medians if ms is not None]
    if medians[0] is not None and len(there) > 1:
        print(f"\nThe first choice takes {medians[0] / min(there):.3f} times the best of {len(there)} measured plans.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--machine", required=True, help="the file that `doctor --measure` wrote here")
    parser.add_argument("--out", required=True)
    parser.add_argument("--binary", default="bin/millrace")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--budget-s", type=float, default=float("inf"))
    parser.add_argument("--draw-only", action="store_true", help="print the twelve and end")
    args = parser.parse_args()
    drawn = draw(args)
    if args.draw_only:
        for row in drawn:
            print(f"{row['predicted_ms']:10.2f} ms  {row['what']}: {' '.join(as_sets(row['plan']))}")
        return 0
    name = f"advice_{args.config.rsplit('/', 1)[-1].removesuffix('.json')}_{args.ranks}"
    kept = results.Results(args.out, name, results.commit_of(args.binary), runs.host_of(args.binary), runs.as_typed(["python3", "-B", "tools/bench/advice.py", *sys.argv[1:]]))
    kept.write()
    whole = measure(args, kept, drawn)
    table(kept, drawn)
    return 0 if whole else 3


if __name__ == "__main__":
    sys.exit(main())
