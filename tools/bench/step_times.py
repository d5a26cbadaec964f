#!/usr/bin/env python3
"""Step times that `millrace plan` predicts beside measured ones, and how far it is off.

  python3 -B tools/bench/step_times.py table            # writes its parts of README.md
  python3 -B tools/bench/step_times.py table --check    # exit 1 when they are others
  python3 -B tools/bench/step_times.py table --print --machine FILE RECORDED.json
  python3 -B tools/bench/step_times.py record --program bin/millrace [--ranks N] --out FILE.json

Two tables. That of h200 has its measured times from tools/bench/results: runs that headline.py, seeds.py and step_gate.py kept, whole samples, and step_times_history_h200.json,
medians of earlier commits whose samples are gone. Those marked "used" set the figures of configs/machines/h200.json; nothing was fitted to those "held out"; those "measured later"
were not there yet. That of MEASURED has the cases of HERE, which `record` measures on a host with two GPUs, best behind `doctor --measure`: those "used" were looked at while the model
was made; those "held out" changed nothing. With --ranks it measures the first table's of so many GPUs instead. Standard library only.
"""
import argparse, datetime, json, os, pathlib, statistics, subprocess, sys, tempfile, time
import runs

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
RESULTS = FOLDER / "results"
PARTS = {"h200": ("<!-- made by step_times.py: begin -->", "<!-- made by step_times.py: end -->"),
         "measured": ("<!-- made by step_times.py: measured: begin -->", "<!-- made by step_times.py: measured: end -->")}
MEASURED = "step_times_h200-x2.json"
NEVER, FORWARD = "sharding.reshard=never", "sharding.reshard=after_forward"
SHORT_1B = ["train.micro_batch=1", "model.seq_len=512", "sharding.blocks_per_unit=4", "precision.grad_accumulate=bf16", FORWARD]
WIDE_355M = ["train.micro_batch=8", "precision.grad_wire=fp32", "execution.peer_memory=on", FORWARD]
B, DETERMINISTIC = "train.micro_batch={}".format, "execution.deterministic=true"

ONE = "sharding.blocks_per_unit=1"
LAYER_8B = ["model.layers=1", "model.vocab=32000", B(1), "train.accumulate=128", "sharding.grad_sync=last", FORWARD, "sharding.grad_concat=direct"]
USED, HELD, UNSEEN = "used", "held out", "measured later"

# title, configuration, keys set, ranks, used, where its measured time is: (file, group or key, variant).
CASES = [
    ("GPT-2 124M, B 64", "gpt2_124m", [B(64)], 2, USED, ("headline_h200-x2_small.json", "gpt2_124m_b64, 2 GPUs", "millrace")),
    ("GPT-2 30M, B 4, T 256", "gpt2_30m", [B(4)], 2, USED, ("headline_h200-x2_small.json", "gpt2_30m_b4, 2 GPUs", "millrace")),
    ("GPT-2 355M, B 8, fp32 wire", "gpt2_355m", WIDE_355M + ["sharding.downcast=after_update"], 2, USED,
     ("seeds_h200-x2_f7b26bf.json", "downcast over peers' memory GPT-2 355M B 8", "after_update")),
    ("Llama 1B, B 1, T 512, 4 blocks a unit", "llama_1b", SHORT_1B + ["sharding.downcast=after_update"], 2, USED,
     ("seeds_h200-x2_f7b26bf.json", "downcast over NVLink", "after_update")),
    ("Llama 8B, B 1, T 8192", "llama_8b", [B(1), NEVER], 4, USED, ("step_times_history_h200.json", "llama_8b", "4")),
    ("Llama 160M, B 64", "llama_160m", [B(64), DETERMINISTIC], 1, USED, ("step_times_history_h200.json", "llama_160m", "1")),
    ("GPT-2 124M, B 64", "gpt2_124m", [B(64)], 1, HELD, ("headline_h200-x2_small.json", "gpt2_124m_b64, 2 GPUs", "millrace on 1 GPU")),
    ("GPT-2 124M, B 4", "gpt2_124m", [B(4)], 2, HELD, ("step_gate_h200-x2.json", "gpt2_124m:train.micro_batch=4", "new")),
    ("Llama 1B, B 4, downcast after the gather", "llama_1b", [B(4), "execution.peer_memory=on", FORWARD, "sharding.downcast=after_gather"], 2, HELD,
     ("seeds_h200-x2_f7b26bf.json", "downcast over peers' memory Llama 1B B 4", "after_gather")),
    ("Llama 1B, B 1, T 512, downcast after the gather", "llama_1b", SHORT_1B + ["sharding.downcast=after_gather"], 2, HELD,
     ("seeds_h200-x2_f7b26bf.json", "downcast over NVLink", "after_gather")),
    ("Llama 8B, eight of its layers, B 1", "llama_8b", [B(1), NEVER, "model.layers=8"], 2, HELD, ("step_times_history_h200.json", "llama_8b_8", "2")),
    ("GPT-2 1558M, B 16", "gpt2_1558m", [B(16), NEVER, "sharding.blocks_per_unit=4"], 4, HELD, ("step_times_history_h200.json", "gpt2_1558m", "4")),
    ("Llama 1B, B 8, T 4096", "llama_1b", [B(8), NEVER], 4, HELD, ("step_times_history_h200.json", "llama_1b", "4")),
    ("GPT-2 124M, B 64", "gpt2_124m", [B(64), NEVER], 4, HELD, ("step_times_history_h200.json", "gpt2_124m", "4")),
    ("GPT-2 30M, B 4, T 256", "gpt2_30m", [B(4)], 1, HELD, ("step_times_history_h200.json", "gpt2_30m", "1")),
    # Measured after the figures were set.
    ("Llama 1B, B 4, T 4096", "llama_1b", [B(4)], 1, UNSEEN, ("headline_h200-x2_large.json", "llama_1b_b4, 2 GPUs", "millrace on 1 GPU")),
    ("Llama 1B, B 4, T 4096", "llama_1b", [B(4)], 2, UNSEEN, ("headline_h200-x2_large.json", "llama_1b_b4, 2 GPUs", "millrace")),
    ("GPT-2 124M, B 4, resharded", "gpt2_124m", [B(4), ONE, FORWARD], 2, UNSEEN, ("seeds_h200-x2.json", "graphs GPT-2 124M B 4", "step")),
    ("Llama 160M, B 4, resharded", "llama_160m", [B(4), ONE, FORWARD], 2, UNSEEN, ("seeds_h200-x2.json", "graphs Llama 160M B 4", "step")),
    ("Llama 8B, eight of its layers, B 1, resharded", "llama_8b", [B(1), ONE, FORWARD, "model.layers=8"], 2, UNSEEN,
     ("seeds_h200-x2.json", "graphs eight layers at Llama 8B's width", "step")),
    ("Llama 1B, B 1, T 2048, uneven units", "llama_1b", [B(1), "model.seq_len=2048", "sharding.blocks_per_unit=[1,2,4,1,2,4,1,1]", FORWARD], 2, UNSEEN,
     ("seeds_h200-x2.json", "allocators on uneven units", "packed")),
    ("Llama 8B, one of its layers, T 2048, accumulate 128", "llama_8b", LAYER_8B + ["model.seq_len=2048"], 2, UNSEEN, ("seeds_h200-x2.json", "concat T 2048", "direct")),
    ("Llama 8B, one of its layers, T 256, accumulate 128", "llama_8b", LAYER_8B + ["model.seq_len=256"], 2, UNSEEN, ("seeds_h200-x2.json", "concat T 256", "direct")),
    ("GPT-2 124M, B 1, T 128", "gpt2_124m", [B(1), "model.seq_len=128"], 2, UNSEEN, ("seeds_h200-x2.json", "short sequences", "step")),
]

ACCUMULATE_1B = [B(2), "train.accumulate=4", "memory.prefetch=1", NEVER]
CONTEXT_1B = ["parallel.shard=1", "parallel.context=2", B(16), "memory.prefetch=1", NEVER]
NO_SOURCE = None
# Of a title above, or a case of its own.
HERE = [
    ("Llama 1B, B 1, T 512, 4 blocks a unit", 2, USED),
    ("Llama 1B, B 1, T 512, downcast after the gather", 2, USED),
    ("Llama 1B, B 4, T 4096", 2, USED),
    ("Llama 1B, B 2, accumulate 4", "llama_1b", ACCUMULATE_1B, 2, USED, NO_SOURCE),
    ("GPT-2 124M, B 4", 2, USED),
    ("Llama 1B, B 16, context 2", "llama_1b", CONTEXT_1B, 2, USED, NO_SOURCE),
    ("Llama 160M, B 4, resharded", 2, HELD),
    ("Llama 8B, eight of its layers, B 1, resharded", 2, HELD),
    ("Llama 1B, B 1, T 2048, uneven units", 2, HELD),
    ("Qwen3 600M, B 4, T 4096", "qwen3_600m", [B(4)], 2, USED, NO_SOURCE),
    ("GPT-2 124M, B 64", 1, HELD),
    ("Llama 1B, B 4, T 4096", 1, HELD),
]


def here():
    """Cases of HERE, each as those of CASES are."""
    for entry in HERE:
        if len(entry) > 3:
            yield entry
            continue
        title, ranks, used = entry
        found = next(case for case in CASES if (case[0], case[3]) == (title, ranks))
        yield (*found[:4], used, found[5])


def words(case):
    title, name, sets, ranks, used, source = case
    return [f"configs/{name}.json"] + [word for key in sets for word in ("--set", key)]


def measured(source):
    """Median of a case's samples, and where it stands."""
    file, group, variant = source
    data = json.loads((RESULTS / file).read_text())
    if "cases" in data:
        samples = [ms for round_ in data["cases"][group] for ms in round_[1 if variant == "new" else 0]]
    elif "medians" in data:
        row = data["medians"][group][variant]
        return row["ms"], "HISTORY.md: " + row["section"]
    else:
        rows = [row["result"] for row in data["rows"] if (row["group"], row["variant"]) == (group, variant)]
        samples = [ms for row in rows for ms in row.get("step_ms_samples") or row["step_ms"]]
    return statistics.median(samples), file


def predicted(program, machine, case):
    command = [program, "plan", *words(case), "--world", str(case[3]), "--machine", machine, "--json", "--set", "execution.backend=cuda"]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)["time"]["step_s"] * 1e3


def recorded(files):
    """Measured times by title and ranks, of `record`'s files."""
    found = {}
    for file in files:
        for row in json.loads(pathlib.Path(file).read_text())["rows"]:
            found[(row["title"], row["ranks"])] = statistics.median(row["step_ms_samples"]), pathlib.Path(file).name
    return found


def rows_of(args, cases, machine, of_files):
    lines, errors = ["| configuration | GPUs | predicted ms | measured ms | error | | measured in |", "|---|--:|--:|--:|--:|---|---|"], {USED: [], HELD: [], UNSEEN: []}
    for case in cases:
        title, _, _, ranks, used, source = case
        if of_files and (title, ranks) not in of_files:
            continue
        time_ms, where = of_files[(title, ranks)] if of_files else measured(source)
        guess = predicted(args.program, machine, case)
        error = 100 * (guess / time_ms - 1)
        errors[used].append(abs(error))
        lines.append(f"| {title} | {ranks} | {guess:.2f} | {time_ms:.2f} | {error:+.1f}% | {used} | {where} |")
    return "\n".join(lines) + f"\n\nErrors without sign, {summary_of(errors)}."


def summary_of(errors):
    return "; ".join(f"{used}: {sum(e <= 5 for e in errors[used])} of {len(errors[used])} within 5%, mean {statistics.mean(errors[used]):.1f}%, worst {max(errors[used]):.1f}%"
                     for used in errors if errors[used])


def other_cards(args):
    """A row for each record of other cards, by the built-in machine and by the file that `doctor --measure` wrote of them."""
    lines = ["| recorded in | by machine | within 5% | mean | farthest |", "|---|---|--:|--:|---|"]
    for file in sorted(RESULTS.glob(pathlib.Path(MEASURED).stem + "_*.json")):
        own = RESULTS / file.name.replace("step_times", "machine")
        of_file = recorded([file])
        for machine in ["h200"] + [str(own)] * own.exists():
            errors = {f"{case[0]}, {case[3]} GPU{'s' * (case[3] > 1)}": 100 * (predicted(args.program, machine, case) / of_file[(case[0], case[3])][0] - 1) for case in here() if (case[0], case[3]) in of_file}
            far = max(errors, key=lambda title: abs(errors[title]))
            lines.append(f"| {file.name} | {'h200' if machine == 'h200' else own.name} | {sum(abs(e) <= 5 for e in errors.values())} of {len(errors)} | "
                         f"{statistics.mean(map(abs, errors.values())):.1f}% | {far}: {errors[far]:+.1f}% |")
    return "\n".join(lines)


def table(args):
    if args.files:
        first = list(here())
        known = [(case[0], case[3]) for case in first]
        print(rows_of(args, first + [case for case in CASES if (case[0], case[3]) not in known], args.machine, recorded(args.files)))
        return 0
    if args.machine != "h200":
        return "table: a machine is compared with RECORDED.json of its own cards"
    texts = {"h200": rows_of(args, CASES, "h200", {}),
             "measured": rows_of(args, here(), "h200", recorded([RESULTS / MEASURED])) + "\n\nThe same steps on other pairs of H200s:\n\n" + other_cards(args)}
    if args.print:
        print("\n\n".join(texts.values()))
        return 0
    readme = FOLDER / "README.md"
    old = new = readme.read_text()
    for part, (begin, end) in PARTS.items():
        new = new[:new.index(begin)] + begin + "\n" + texts[part] + "\n" + new[new.index(end):]
    if args.check:
        return 0 if new == old else "README.md: step_times.py gives other tables"
    readme.write_text(new)
    return 0


def record(args):
    """Each case in a process of its own, one after the other, but for those of one GPU, which run beside each other; samples, command and date of each. A power cap settles
    within a second or two: so long a case is warmed up, and timed for twice that."""
    rows, began = [], time.monotonic()
    cases = list(here()) if args.ranks is None else [case for case in CASES if case[3] == args.ranks]
    waiting, alone = [case for case in cases if case[3] > 1], [case for case in cases if case[3] == 1]
    for together in [[case] for case in waiting] + [alone[i:i + 2] for i in range(0, len(alone), 2)]:
        running = []
        with tempfile.TemporaryDirectory() as folder:
            for gpu, case in enumerate(together):
                if time.monotonic() - began > args.budget_s:
                    continue
                guess_s = predicted(args.program, "h100", case) * 1e-3
                steps, warmup = (max(least, min(60, int(seconds / guess_s))) for least, seconds in ((8, 2 * args.seconds), (4, args.seconds)))
                command = (["mpirun", "-n", str(case[3]), "--bind-to", "none"] if case[3] > 1 else []) + [
                    args.program, "bench", *words(case), "--steps", str(steps), "--warmup", str(warmup), "--json", "--set", f"run.dir={folder}/run{gpu}"]
                environment = dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu)) if case[3] == 1 else None
                running.append((case, command, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)))
            for case, command, process in running:
                out, err = process.communicate()
                if process.returncode:
                    print(f"{case[0]}: exit {process.returncode}\n{err[-2000:]}", file=sys.stderr)
                    continue
                said = json.loads(out.strip().splitlines()[-1])
                rows.append({"title": case[0], "ranks": case[3], "device": said["device"], "step_ms_samples": said["step_ms_samples"],
                             "command": runs.as_typed(command, folder), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")})
                pathlib.Path(args.out).write_text(json.dumps({"schema": 1, "name": pathlib.Path(args.out).stem, "rows": rows}, indent=1) + "\n")
                print(f"{case[0]}, {case[3]} GPUs: {statistics.median(said['step_ms_samples']):.2f} ms", file=sys.stderr)
    return 0 if rows else "no case was measured"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("table")
    one.add_argument("files", nargs="*")
    one.add_argument("--check", action="store_true")
    one.add_argument("--print", action="store_true", help="to standard output, README.md stays as it is")
    one.add_argument("--machine", default="h200")
    two = verbs.add_parser("record")
    two.add_argument("--ranks", type=int)
    two.add_argument("--seconds", type=float, default=1.5, help="of warming up; twice that are timed")
    two.add_argument("--budget-s", type=float, default=float("inf"))
    two.add_argument("--out", required=True)
    for verb, program in ((one, ROOT / "bazel-bin/tools/cli/millrace_cpu"), (two, "bin/millrace")):
        verb.add_argument("--program", default=str(program))
    args = parser.parse_args()
    return table(args) if args.verb == "table" else record(args)


if __name__ == "__main__":
    sys.exit(main())
