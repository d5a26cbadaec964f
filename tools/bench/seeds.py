#!/usr/bin/env python3
"""The comparisons of the five systems that Millrace goes back to, run on Millrace: raw results as JSON, and the page SEEDS.md made from them.

  python3 -B tools/bench/seeds.py --cpu                                      # bytes, counts, planned memory and bits, two ranks of this host
  python3 -B tools/bench/seeds.py --device h200-x2 --budget-s 540 --out OUT  # times and peaks, in an unpacked package on a host with two GPUs
  python3 -B tools/bench/seeds.py --page                                     # SEEDS.md again, from the JSON in tools/bench/results
  python3 -B tools/bench/seeds.py --list [--cpu | --device h200-x2]          # what would run, in order

Groups run in order of worth (seed_groups.py), the variants of a group in turn, round by round. A row is written when it has run; a row that the file
has for this commit and machine is not run again, so a run that its budget ended goes on where it was. Rows of a variant that this program refuses, because it does not know the
option, carry the refusal. Exit code 1: a row failed for another reason. Standard library only.
"""
import argparse, hashlib, json, os, pathlib, shlex, subprocess, sys, tempfile, time
import results, runs, seed_groups, seed_page

HERE = pathlib.Path(__file__).resolve().parent
CONFIGS = HERE.parent.parent / "configs"
ROW_LIMIT_S = 150
FIRST_GUESS_S = 15  # of a row, where its group has none yet
KEPT_OF_BENCH = ("step_ms_samples", "host_us_samples", "gathered_bytes_per_step", "reduced_bytes_per_step", "cast_bytes_per_step",
                 "concatenated_bytes_per_step", "arena_bytes", "peak_bytes", "graph", "graph_nodes", "peer_memory", "device", "world", "updates")


class Failed(Exception):
    """Why a row has no result, in one line."""


class Rows:
    def __init__(self, args, groups, kept):
        self.args, self.groups, self.kept, self.begin = args, groups, kept, time.monotonic()
        self.program = runs.Program(args.binary, args.ranks, oversubscribe=args.cpu)
        self.failed = 0

    def elapsed(self):
        return time.monotonic() - self.begin

    def all(self):
        """(group, variant, round), in the order in which they are run."""
        for group in self.groups:
            if group.ranks not in (0, self.args.ranks):
                continue
            for round_ in range(1, group.rounds + 1):
                for variant in [*group.variants, *group.peers]:
                    yield group, variant, round_

    def run(self):
        """Whether all rows are there now."""
        whole = True
        with tempfile.TemporaryDirectory(prefix="seeds_") as work:
            self.work = pathlib.Path(work)
            for group, variant, round_ in self.all():
                row_id = f"{group.name}/{variant}/{round_}"
                if self.kept.has(row_id, asked_of(group, variant)):
                    continue
                if self.elapsed() + (self.kept.seconds_of(group.name, variant) or FIRST_GUESS_S) > self.args.budget_s:
                    print(f"[{self.elapsed():4.0f} s] {row_id}: not begun, the budget of {self.args.budget_s:.0f} s is spent", file=sys.stderr, flush=True)
                    whole = False
                    continue
                self.one(group, variant, round_, row_id)
        return whole

    def one(self, group, variant, round_, row_id):
        began, said = time.monotonic(), ""
        config = self.config_of(group)
        asked = asked_of(group, variant)
        sets = group.common + group.variants.get(variant, [])
        try:
            if variant in group.peers:
                command, result = self.peer(group, variant, config)
            else:
                if group.verb != "pool":
                    self.require_known(config, sets)
                command, result = getattr(self, group.verb)(group, variant, config, sets)
                if group.planned:
                    result["plan"] = self.plan(config, sets)
            self.kept.add(group.name, variant, round_, asked, command, time.monotonic() - began, result=result)
            if "step_ms_samples" in result:
                said = f"{results.quantile(result['step_ms_samples'], 0.5):.2f} ms"
        except (Failed, ValueError, KeyError, OSError) as e:
            said = str(e) if isinstance(e, Failed) else f"what it said is not understood: {type(e).__name__}: {e}"[:300]
            refused = said.startswith(results.REFUSED)
            self.failed += not refused
            self.kept.add(group.name, variant, round_, asked, runs.as_typed([config, *sets], self.work), time.monotonic() - began, error=said)
        print(f"[{self.elapsed():4.0f} s] {row_id}: {said or 'done'} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)

    def config_of(self, group):
        if not isinstance(group.config, dict):
            return str(CONFIGS / group.config) if group.config else ""
        path = self.work / "config.json"
        path.write_text(json.dumps(group.config))
        return str(path)

    def call(self, command, env=None):
        """Standard output, or Failed."""
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", NCCL_NVLS_ENABLE="0",
                           **(env or {}))
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=ROW_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"no result after {ROW_LIMIT_S} s")
        except OSError as e:
            raise Failed(f"{command[0]}: cannot be started: {e.strerror}")
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode}: {words_of(done.stderr)}")
        return done.stdout

    def require_known(self, config, sets):
        """Whether the program knows the options, asked before any rank starts."""
        command = [self.args.binary, "config", "validate", config, "--world", str(self.args.ranks)]
        for item in sets:
            command += ["--set", item]
        try:
            self.call(command)
        except Failed as e:
            raise Failed(f"{results.REFUSED}: {e}")

    def sets_of(self, group, sets):
        # One choice of algorithms for all rows of a group.
        tuning = [] if self.args.cpu else [f"execution.tuning_file={self.work}/{hashlib.sha256(group.name.encode()).hexdigest()[:12]}.json"]
        return sets + [f"run.dir={self.work}/run"] + tuning

    def bench(self, group, variant, config, sets):
        flags, trace = ["--steps", str(group.steps), "--warmup", str(group.warmup), "--json"], self.work / "trace.json"
        flags += ["--trace", str(trace)] * ("trace" in group.flags) + ["--update"] * ("update" in group.flags)
        command = self.program.command("bench", config, self.sets_of(group, sets), flags)
        line = json.loads(self.call(command, group.env))
        result = {key: line[key] for key in KEPT_OF_BENCH if key in line}
        if not self.args.cpu and result["device"] == "cpu":
            raise Failed("it ran on the CPU")
        if "trace" in group.flags:
            result["trace_us"] = kinds_of(trace)
        return runs.as_typed(command, self.work), result

    def peer(self, group, variant, config):
        words = [sys.executable, str(HERE / "peers" / group.peer), config, *group.peers[variant], "--steps", str(group.steps), "--warmup", str(group.warmup)]
        command = self.program.launched(words)
        line = next(json.loads(text) for text in self.call(command, group.env).splitlines() if text.startswith("{"))
        if "error" in line:
            raise Failed(line["error"])
        return runs.as_typed(command, self.work), dict(line, step_ms_samples=line["step_ms"], arena_bytes=line["peak_allocated_bytes"], peak_bytes=line["device_used_bytes"])

    def train(self, group, variant, config, sets):
        folder = self.work / "_".join(["train", *group.name.split(), *variant.split()]).replace("'", "")
        more = ["data.kind=synthetic", "checkpoint.every=0", "checkpoint.at_end=false", "train.eval_every=0", f"train.steps={group.steps}", f"run.dir={folder}"]
        command = self.program.command("train", config, [s for s in self.sets_of(group, sets) if not s.startswith("run.dir=")] + more)
        self.call(command, group.env)
        summary = json.loads((folder / "summary.json").read_text())
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        steps = [s for s in steps if "step_ms" in s]
        if len(steps) != group.steps:
            raise Failed(f"metrics.jsonl has {len(steps)} steps, {group.steps} were asked for")
        losses = hashlib.sha256(json.dumps([(s["step"], s["loss_bits"], s["grad_norm"]) for s in steps]).encode()).hexdigest()
        counters = {key: value / group.steps for key, value in summary["counters"].items()}
        return runs.as_typed(command, self.work), dict(bits=[losses, summary["param_hash"], summary["optimizer_hash"]], steps=group.steps,
                                         counters_per_step=counters, arena_bytes=summary["measured"]["arena_bytes"], plan_hash=summary["plan_hash"],
                                         last_loss=steps[-1]["loss"])

    def pool(self, group, variant, config, sets):
        name, ranks = group.variants[variant]
        command = [self.args.binary, "plan", os.path.relpath(CONFIGS / name), "--world", ranks, "--set", "execution.backend=cuda", "--allocators", "--json"]
        return runs.as_typed(command, self.work), json.loads(self.call(command))

    def plan(self, config, sets):
        command = [self.args.binary, "plan", config, "--world", str(self.args.ranks), "--json"]
        for item in sets + ([] if self.args.cpu else ["execution.backend=cuda"]):
            command += ["--set", item]
        memory = json.loads(self.call(command))["memory"]
        return {key: memory[key] for key in ("bytes_per_rank", "bytes_at_peak", "parameter_pool_bytes", "gradient_pool_bytes", "arena_bytes",
                                             "run_arena_bytes", "lower_bound_bytes") if key in memory}


def asked_of(group, variant):
    """What makes a row what it is, whatever the group is called."""
    what = group.peers[variant] if variant in group.peers else group.variants[variant]
    return json.dumps([group.verb, group.config, group.common, what, group.steps, group.warmup, group.flags, group.env])


def words_of(stderr):
    """A failed program's own words in one line: the problems it lists, else the first line that names an error, else its last of its own, which follows its notes."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    listed = [line.split(": ", 1)[-1] for line in lines if line.startswith("--set ")]
    telling = [line for line in lines if "rror" in line][:1] or [line for line in lines if line.startswith("millrace")][-1:]
    return "; ".join(listed or telling or lines[:1] or ["it said nothing"])[:300]


def kinds_of(trace):
    """Of rank 0 in a step's trace: microseconds by kind of op, all streams together."""
    sums = {}
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 0:
            sums[event["cat"]] = sums.get(event["cat"], 0) + event["dur"]
    return {kind: round(us, 3) for kind, us in sums.items()}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="two ranks of the CPU backend")
    parser.add_argument("--device", metavar="NAME", help="GPUs, as many as --ranks; NAME is part of the file's name: h200-x2")
    parser.add_argument("--page", action="store_true", help="only write SEEDS.md")
    parser.add_argument("--list", action="store_true", help="only say what would run")
    parser.add_argument("--groups", default="", help="of the groups, those whose name begins with one of these, separated by commas")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--own", action="store_true", help="of the groups, those that are for --ranks alone")
    parser.add_argument("--binary", help="default: bin/millrace for GPUs, bazel-bin/tools/cli/millrace_cpu for the CPU")
    parser.add_argument("--commit", help="of the program; default: what its package or git says")
    parser.add_argument("--out", help="folder of the JSON; default: tools/bench/results")
    parser.add_argument("--earlier", default=str(results.FOLDER), help="folder whose rows of this commit and machine count as run")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin no row that would end after this")
    args = parser.parse_args()
    if not args.page and bool(args.device) == args.cpu:
        parser.error("one of --cpu and --device NAME is needed")
    if args.ranks < 1:
        parser.error(f"--ranks: {args.ranks} is less than 1")
    args.binary = args.binary or ("bazel-bin/tools/cli/millrace_cpu" if args.cpu else "bin/millrace")
    return args


def main():
    args = arguments()
    if args.page:
        seed_page.write()
        return 0
    groups = seed_groups.on_cpu() if args.cpu else seed_groups.on_devices()
    wanted = [name for name in args.groups.split(",") if name]
    for name in wanted:
        if not any(group.name.startswith(name) for group in groups):
            sys.exit(f"--groups: no group begins with '{name}'; there are: {', '.join(group.name for group in groups)}")
    groups = [g for g in groups if not wanted or any(g.name.startswith(name) for name in wanted)]
    if args.own:
        groups = [g for g in groups if g.ranks == args.ranks]
    file = f"seeds_{'cpu' if args.cpu else args.device}.json"
    if args.list:
        for group, variant, round_ in Rows(args, groups, None).all():
            print(f"{group.name}/{variant}/{round_}")
        return 0
    command = shlex.join(["python3", "-B", "tools/bench/seeds.py", *(["--cpu"] if args.cpu else ["--device", args.device])])
    kept = results.Results(pathlib.Path(args.out or results.FOLDER) / file, file[:-5], args.commit or results.commit_of(args.binary), runs.host_of(args.binary, cpu=args.cpu),
                           command, earlier=pathlib.Path(args.earlier) / file)
    kept.write()
    rows = Rows(args, groups, kept)
    whole = rows.run()
    print(f"{len(kept.data['rows'])} rows in {kept.path}" + ("" if whole else "; some were not begun: run the same command again"), file=sys.stderr)
    if args.out is None:
        seed_page.write()
    return 1 if rows.failed else 0


if __name__ == "__main__":
    sys.exit(main())
