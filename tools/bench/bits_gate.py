#!/usr/bin/env python3
"""Whether two programs compute the same bits: what a change that must change none is held against.

  python3 -B tools/bench/bits_gate.py record --program PATH --out FILE.json [--only REGEX] [--jobs N]  # some 100 small runs on the CPU, 1 to 4 ranks
  python3 -B tools/bench/bits_gate.py record --gpu --program bin/millrace --out FILE.json              # 20 steps of two models on one and two GPUs
  python3 -B tools/bench/bits_gate.py compare A.json B.json [--only REGEX]
  python3 -B tools/bench/bits_gate.py list [--gpu]

record keeps of each run the bits of every step's loss, gradient norm and held-out loss, the hashes of logical weights and moments at its end, counters,
arena bytes and the plan's hash. The runs are those of gate_cases.py; a run that was stopped or killed and gone on with must also have the bits of one that
was not. With --begun-by PROGRAM an older program does what comes before: its checkpoints must load. FILE is begun anew each time. Exit code 1: a run failed,
or two that must be alike are not.

compare prints a table by group and each difference with both values. Exit code 1 when a run differs in anything but the plan's hash, failed, or is in one
file alone; 2: FILE is none of ours.

Products of the CPU are OpenBLAS's, which has kernels for each kind of processor: those of Haswell are asked for, so that files of different machines with
AVX2 may be compared. Standard library only.
"""
import argparse, concurrent.futures, datetime, hashlib, json, os, pathlib, re, shlex, shutil, signal, struct, subprocess, sys, tempfile, time
import gate_cases, results, runs

HERE = pathlib.Path(__file__).resolve().parent
CONFIGS = HERE.parent.parent / "configs"
LIMIT_S = {False: 120, True: 200}  # of one command, by --gpu
KILLS = 5  # attempts to kill a run before its end
ENVIRONMENT = dict(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", OPENBLAS_CORETYPE="Haswell", NCCL_NVLS_ENABLE="0", OMPI_ALLOW_RUN_AS_ROOT="1",
                   OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_btl_vader_single_copy_mechanism="none")
OF_STEP = {"loss": "loss", "grad_norm": "norm", "eval_loss": "held-out loss", "max_loss": "largest allowed loss"}  # of metrics.jsonl: of our file
NOTHING = "nothing"  # in place of a value that one file lacks


class Failed(Exception):
    """Why a run has no result, in one line."""


def bits(value, float_bits):
    """A double of JSON, which is written with all its digits, as 16 hexadecimal ones. null is a number that is not finite: then what else is known of it."""
    return struct.pack(">d", value).hex() if value is not None else f"not finite {float_bits or ''}".strip()


def steps_of(folder):
    """Of every step, in order."""
    steps = []
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        step = dict(step=line["step"])
        for key, name in OF_STEP.items():
            if key in line:
                step[name] = bits(line[key], line.get(f"{key}_bits"))
        if line["skipped"]:
            step["skipped"] = line["skipped"]
        steps.append(step)
    return steps


def tensors_hash(folder):
    """SHA-256 of the tensors of a Hugging Face folder by name: type, shape and bytes."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        for name, tensor in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + at for at in tensor["data_offsets"])
                found[name] = (tensor["dtype"], tensor["shape"], hashlib.sha256(data[begin:end]).hexdigest())
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def write_data(work):
    """The files that some of the runs read: text and token ids that differ everywhere."""
    (work / "text").mkdir()
    for part in range(2):
        sentences = [f"Sentence {i} says that {i} times {i + 7} is {i * (i + 7)}.\n" for i in range(part * 200, part * 200 + 200)]
        (work / "text" / f"part_{part}.txt").write_text("".join(sentences))
    (work / "held_out.txt").write_text("".join(f"{i * i} is the square of {i}.\n" for i in range(200)))
    (work / "tokens").mkdir()
    for name, count in (("train.bin", 4000), ("val.bin", 700)):
        (work / "tokens" / name).write_bytes(struct.pack(f"<{count}H", *((i * i * 31 + i * 17 + len(name)) % 251 for i in range(count))))
    (work / "none.json").write_text("{}")


class Recorder:
    """Runs cases with one program; those parts that come before, with another one if there is one."""

    def __init__(self, program, begun_by, gpu, work):
        self.program, self.begun_by, self.gpu, self.work = program, begun_by, gpu, work

    def command(self, program, verb, case, world, sets, folder, run_dir, flags=()):
        config = str(CONFIGS / case.config) if case.config else str(self.work / "none.json")
        filled = [item.replace("{work}", str(self.work)).replace("{run}", str(folder)) for item in sets]
        return runs.Program(program, world, oversubscribe=not self.gpu).command(verb, config, filled + [f"run.dir={run_dir}"], flags)

    def call(self, command, case):
        try:
            done = subprocess.run(command, env=dict(os.environ, **ENVIRONMENT, **case.env), capture_output=True, text=True, timeout=LIMIT_S[self.gpu])
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {LIMIT_S[self.gpu]} s: {shlex.join(command)}")
        except OSError as e:
            raise Failed(f"{command[0]}: cannot be started: {e.strerror}")
        if done.returncode != 0:
            lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            said = "; ".join([line for line in lines if "millrace" in line or line.startswith("--set")][:4] or lines[-1:] or ["it said nothing"])
            raise Failed(f"exit code {done.returncode}: {said}"[:600])

    def kill(self, command, run_dir, case):
        """Kills it when it has a checkpoint; False when it had ended by then."""
        process = subprocess.Popen(command, env=dict(os.environ, **ENVIRONMENT, **case.env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + LIMIT_S[self.gpu]
        while process.poll() is None and not list(run_dir.glob("checkpoints/step_*")):
            if time.monotonic() > deadline:
                process.kill()
            time.sleep(0.001)
        process.kill()
        return process.wait() == -signal.SIGKILL

    def before(self, case, folder, run_dir):
        """What the case is gone on from: a checkpoint in run_dir, or a Hugging Face folder. Returns what there is to keep of it."""
        how, program = case.before, self.begun_by or self.program
        first = self.command(program, "train", case, how["world"], how["sets"], folder, folder / "first" if how["do"] == "export" else run_dir)
        if how["do"] == "kill":
            for _ in range(KILLS):
                shutil.rmtree(run_dir, ignore_errors=True)
                if self.kill(first, run_dir, case):
                    return {}
            raise Failed(f"{KILLS} times it had ended before it was killed")
        self.call(first, case)
        if how["do"] == "stop":
            return {}
        self.call(self.command(program, "export", case, how["world"], how["sets"], folder, folder / "first", ["--to", str(folder / "hf")]), case)
        return dict(exported=tensors_hash(folder / "hf"))

    def one(self, case):
        """(seconds, result or None, error or None)"""
        began = time.monotonic()
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        run_dir = folder / "run"
        command = self.command(self.program, "train", case, case.world, case.sets, folder, run_dir)
        try:
            kept = self.before(case, folder, run_dir) if case.before else {}
            self.call(command, case)
            summary = json.loads((run_dir / "summary.json").read_text())
            result = dict(steps=steps_of(run_dir), weights=summary["param_hash"], moments=summary["optimizer_hash"], counters=summary["counters"],
                          arena_bytes=summary["measured"]["arena_bytes"], **kept, plan=summary["plan_hash"])
            return time.monotonic() - began, result, None
        except (Failed, OSError, ValueError, KeyError) as e:
            said = str(e) if isinstance(e, Failed) else f"what it left is not understood: {type(e).__name__}: {e}"[:300]
            return time.monotonic() - began, None, said
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def flat(result):
    """{place: value} of all that is compared, in order."""
    places = {}
    for step in result["steps"]:
        places.update({f"step {step['step']}, {name}": value for name, value in step.items() if name != "step"})
    for name in ("weights", "moments", "exported", "arena_bytes"):
        if name in result:
            places[name] = result[name]
    places.update({f"counter {name}": value for name, value in result["counters"].items()})
    return places


def readable(value):
    """A value for people: of bits the number as well."""
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value):
        return f"{value} ({struct.unpack('>d', bytes.fromhex(value))[0]!r})"
    return str(value)


def differences(a, b):
    """[(place, value of a, value of b)] of two results, the plan's hash apart."""
    of_a, of_b = flat(a), flat(b)
    places = [*of_a, *(place for place in of_b if place not in of_a)]
    return [(p, of_a.get(p, NOTHING), of_b.get(p, NOTHING)) for p in places if of_a.get(p, NOTHING) != of_b.get(p, NOTHING)]


def unlike(case, rows):
    """Why a run that must have the bits of an earlier one has not, in one line; None where it has. The two may plan otherwise."""
    mine, other = rows.get(case.id), rows.get(case.same_as)
    if mine is None or other is None or "error" in mine or "error" in other:
        return None
    found = differences(other["result"], mine["result"])
    return f"{found[0][0]}: {readable(found[0][1])}, and here {readable(found[0][2])}" if found else None


def only_this(case_id):
    return re.escape(case_id).replace("\\ ", " ")


def record(args):
    cases = gate_cases.on_gpus() if args.gpu else gate_cases.on_cpu()
    chosen = {case.id: case for case in cases if re.search(args.only, case.id)}
    beside = {case.same_as for case in chosen.values()}
    cases = [case for case in cases if case.id in chosen or case.id in beside]
    if not cases:
        sys.exit(f"--only: no run is called '{args.only}'; `list` names them")
    out = pathlib.Path(args.out)
    out.unlink(missing_ok=True)
    name = "bits_gate_gpu" if args.gpu else "bits_gate_cpu"
    said = f"python3 -B tools/bench/bits_gate.py record{' --gpu' if args.gpu else ''}"
    kept = results.Results(out, name, args.commit or results.commit_of(args.program), runs.host_of(args.program, cpu=not args.gpu), said)
    began, failed, rows = time.monotonic(), 0, {}
    with tempfile.TemporaryDirectory(prefix="gate_") as work, concurrent.futures.ThreadPoolExecutor(max_workers=args.jobs) as pool:
        write_data(pathlib.Path(work))
        recorder = Recorder(args.program, args.begun_by, args.gpu, pathlib.Path(work))
        for case, (seconds, result, error) in zip(cases, pool.map(recorder.one, cases)):
            kept.add(case.group, case.name, 1, case.asked(), f"{said} --only {shlex.quote('^' + only_this(case.id) + '$')}", seconds, result=result, error=error)
            rows[case.id] = kept.data["rows"][-1]
            wrong = error or unlike(case, rows)
            failed += wrong is not None
            word = f"not the bits of {case.same_as}: {wrong}" if wrong and not error else wrong or "done"
            print(f"[{time.monotonic() - began:4.0f} s] {case.id}: {word} ({seconds:.1f} s)", file=sys.stderr, flush=True)
    print(f"{len(cases)} runs in {time.monotonic() - began:.0f} s, {failed} failed: {out}", file=sys.stderr)
    return 1 if failed else 0


def loaded(path, only):
    try:
        data = results.load(path)
    except (OSError, ValueError, KeyError) as e:
        print(f"{path}: {e}", file=sys.stderr)
        raise SystemExit(2)
    if not data["name"].startswith("bits_gate_"):
        print(f"{path}: name is {data['name']!r}; bits_gate_cpu or bits_gate_gpu is allowed", file=sys.stderr)
        raise SystemExit(2)
    return data, {f"{row['group']}/{row['variant']}": row for row in data["rows"] if re.search(only, f"{row['group']}/{row['variant']}")}


def compare_rows(a, b):
    """What differs between two rows, in lines; none: nothing but the plan's hash may."""
    if a is None or b is None:
        return [f"it is in {'B' if a is None else 'A'} alone"]
    if a["asked"] != b["asked"]:
        return [f"it was asked for something else: {a['asked']} and {b['asked']}"]
    failures = [f"it failed in {which}: {row['error']}" for which, row in (("A", a), ("B", b)) if "error" in row]
    # A counter of what B's program learned to do since, and did not do here, is none.
    return failures or [f"{place}: {readable(of_a)}, then {readable(of_b)}" for place, of_a, of_b in differences(a["result"], b["result"])
                        if not (place.startswith("counter ") and of_a == NOTHING and of_b == 0)]


def compare(args):
    (head_a, of_a), (head_b, of_b) = loaded(args.a, args.only), loaded(args.b, args.only)
    if head_a["name"] != head_b["name"]:
        print(f"{args.a} is {head_a['name']} and {args.b} {head_b['name']}: these have no run in common", file=sys.stderr)
        return 2
    if not of_a and not of_b:
        print("no run to compare", file=sys.stderr)
        return 2
    for which, path, head in (("A", args.a, head_a), ("B", args.b, head_b)):
        print(f"{which}: {path}, commit {head['commit']}, {head['machine']}")
    if head_a["machine"] != head_b["machine"]:
        print("These are two machines: if much differs, that may be why.")
    ids = [*of_a, *(i for i in of_b if i not in of_a)]
    groups, lines, plans = {}, [], []
    for i in ids:
        a, b = of_a.get(i), of_b.get(i)
        found = compare_rows(a, b)
        count = groups.setdefault((a or b)["group"], dict(runs=0, same=0, differ=0, alone=0, plans=0))
        count["runs"] += 1
        count["alone" if a is None or b is None else "differ" if found else "same"] += 1
        lines += [f"{i}: {line}" for line in found]
        if a and b and "result" in a and "result" in b and a["result"]["plan"] != b["result"]["plan"]:
            count["plans"] += 1
            plans.append(f"{i}: plan {a['result']['plan']}, then {b['result']['plan']}")
    total = {key: sum(count[key] for count in groups.values()) for key in ("runs", "same", "differ", "alone", "plans")}
    print("\n| group | runs | same bits | differ | in one file alone | other plan hash |\n|---|--:|--:|--:|--:|--:|")
    for group, count in [*groups.items(), ("all", total)]:
        print(f"| {group} | {' | '.join(str(count[key]) for key in total)} |")
    if plans:
        print("\nOther plans, which is allowed:", *(plans if args.plans else plans[:3]), *(["..."] if len(plans) > 3 and not args.plans else []), sep="\n")
    if lines:
        print("\nDifferences, A's value, then B's:", *lines, sep="\n")
    return 1 if lines else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="run all, and keep what they computed")
    recording.add_argument("--program", required=True, help="millrace, or millrace_cpu")
    recording.add_argument("--out", required=True, help="the file")
    recording.add_argument("--begun-by", metavar="PROGRAM", help="does what other runs are gone on from: an older program")
    recording.add_argument("--jobs", type=int, default=1, help="runs at a time (CPU)")
    recording.add_argument("--commit", help="of the program; default: what its package or git says")
    comparing = verbs.add_parser("compare", help="two files")
    comparing.add_argument("a", metavar="A.json")
    comparing.add_argument("b", metavar="B.json")
    comparing.add_argument("--plans", action="store_true", help="name every plan that is another, and not three")
    listing = verbs.add_parser("list", help="what would run")
    for verb in (recording, listing):
        verb.add_argument("--gpu", action="store_true", help="the runs on GPUs")
    for verb in (recording, comparing, listing):
        verb.add_argument("--only", metavar="REGEX", default="", help="of the runs, those whose group/name it matches")
    args = parser.parse_args()
    try:
        re.compile(args.only)
    except re.error as e:
        parser.error(f"--only: '{args.only}' is no regular expression: {e}")
    if args.verb == "record":
        if args.jobs < 1 or (args.gpu and args.jobs > 1):
            parser.error(f"--jobs: {args.jobs}; {'1 is allowed with --gpu' if args.gpu else 'at least 1 is allowed'}")
        for program in (args.program, args.begun_by):
            if program is not None and not os.access(program, os.X_OK):
                parser.error(f"'{program}' is no program that can be run")
        args.program = os.path.abspath(args.program) if os.sep in args.program else args.program
    return args


def main():
    args = arguments()
    if args.verb == "list":
        for case in gate_cases.on_gpus() if args.gpu else gate_cases.on_cpu():
            if re.search(args.only, case.id):
                print(f"{case.id}: {case.world} ranks: {' '.join(case.sets)}")
        return 0
    return record(args) if args.verb == "record" else compare(args)


if __name__ == "__main__":
    sys.exit(main())
