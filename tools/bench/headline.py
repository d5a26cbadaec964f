#!/usr/bin/env python3
"""Millrace and its peers on the same shapes, one after the other in rounds: a table, its data and a picture.

  python3 tools/bench/headline.py gpt2_124m_b64 gpt2_30m_b4 --ranks 1 --rounds 2 --out results
  python3 tools/bench/headline.py gpt2_124m_b64 llama_1b_b4 --ranks 2 --out results --peers ddp,fsdp2,fsdp2_keep [--llmc train_gpt2cu]

A case NAME_bB is configs/NAME.json at train.micro_batch B. Every round runs ours, each peer, ours deterministic and, on several ranks, ours alone on one
GPU. Peers are variants of peers/torch_bench.py; the first of them runs once with every --sdpa, the fastest is everybody's from there on. llm.c takes part
in GPT-2 cases where its program is given; Megatron-FSDP where its wheel is given and there are several GPUs. NVLink multicast is off for all.
Steps of all rounds are taken together. OUT gets table.md, table.json (every step's time, every failure), bars.svg, logs/ and headline_NAME.json, the rows
that tables.py reads; they are written again after every run. Runs that OUT/headline_NAME.json, or that of --earlier, has for this commit and machine are not
made again: a call that its budget ended goes on where it was. What fails or runs out of memory is a row that says so. Exit code 1 when ours failed or, in a case, every peer, else 0. Standard library only; peers need torch.
"""
import argparse, datetime, json, math, os, re, shlex, shutil, signal, socket, subprocess, sys, tempfile, time
import headline_table, results, runs
from peers import llmc

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ["gpt2_124m_b64", "gpt2_1558m_b16", "llama_1b_b8", "llama_8b_b1", "gpt2_30m_b4", "gpt2_124m_b4"]
ON_ONE = ("eager", "compile", "autotune", "graphs", "step_graph")
SDPA = ("cudnn", "flash", "efficient", "math", "auto")
MEGATRON = ("mfsdp", "mfsdp_maxpool")
ON_MANY = ("ddp_eager", "ddp", "ddp_graphs", "fsdp2_eager", "fsdp2", "fsdp2_keep", *MEGATRON)
OURS = {"millrace": "false", "millrace deterministic": "true"}
# What mpirun says of a rank that failed, after the rank's own words.
OF_MPIRUN = r"-----|Primary job|a non-zero exit code|mpirun|Process name:|Exit code:|MPI_ABORT|with errorcode|NOTE: invoking|You may or may not|exactly when|Run with --help"
ALONE = headline_table.ALONE  # the same configuration, for what communication costs


def default_peers(ranks, shape):
    """What was best, or close to it, somewhere on that many GPUs."""
    small = shape["tokens_per_step"] // ranks <= 8192
    if ranks == 1:
        return ["graphs", "step_graph"] if small else ["compile"]
    if small:
        return ["ddp_graphs", "ddp"]
    return ["fsdp2", "fsdp2_keep"] + (["ddp"] if shape["parameters"] < 3e9 else [])


def wanted_peers(args, shape):
    """Those asked for, or the default ones; Megatron-FSDP, whose hooks take milliseconds, where steps are long and its wheel is given."""
    if args.peers is not None:
        return args.peers
    large = args.ranks > 1 and shape["tokens_per_step"] // args.ranks > 8192
    return default_peers(args.ranks, shape) + ["mfsdp_maxpool"] * bool(args.megatron and large)


class Runner:
    """Starts one program at a time, each with a time limit, and keeps what it said."""

    def __init__(self, args):
        self.args, self.begin, self.count, self.folder = args, time.monotonic(), 0, os.path.join(args.out, "logs")
        self.gpu_log, self.watcher = os.path.join(self.folder, "gpu.csv"), None
        with open(self.gpu_log, "w") as log:
            if args.device == "cuda" and shutil.which("nvidia-smi"):
                self.watcher = subprocess.Popen(["nvidia-smi", "--query-gpu=index,clocks.sm,power.draw,utilization.gpu", "--format=csv,noheader,nounits",
                                                 "-lms", "1000"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.DEVNULL)

    def close(self):
        if self.watcher:
            self.watcher.terminate()
            self.watcher.wait()

    def elapsed(self):
        return time.monotonic() - self.begin

    def mpi(self, ranks, command):
        return runs.Program(command[0], ranks, self.args.oversubscribe).launched(command)

    def run(self, name, command):
        """(exit code or None after the time limit, standard output, seconds, file of standard error, what gpu.csv got meanwhile)."""
        self.count += 1
        stem = os.path.join(self.folder, f"{self.count:03}_" + re.sub(r"[^a-z0-9_]+", "_", name.lower()))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = dict(os.environ, NCCL_NVLS_ENABLE="0", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", PYTHONDONTWRITEBYTECODE="1",
                   MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        if self.args.megatron:  # a wheel of Python alone is imported as it is
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.abspath(self.args.megatron), env.get("PYTHONPATH")]))
        env.setdefault("OMP_NUM_THREADS", "1" if self.args.device == "cpu" else "8")
        start, logged = time.monotonic(), os.path.getsize(self.gpu_log)
        with open(stem + ".out", "w+", errors="replace") as out, open(stem + ".err", "w") as err:
            err.write(shlex.join(command) + "\n")
            err.flush()
            try:
                child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True)
            except OSError as e:
                err.write(f"{command[0]}: cannot be started: {e.strerror}\n")
                return 127, "", 0.0, stem + ".err", ""
            try:
                code = child.wait(self.args.run_timeout_s)
            except BaseException as e:
                self.end(child)
                if not isinstance(e, subprocess.TimeoutExpired):
                    raise
                code = None
            out.seek(0)
            said, seconds = out.read(), time.monotonic() - start
        with open(self.gpu_log) as log:
            log.seek(logged)
            return code, said, seconds, stem + ".err", log.read()

    @staticmethod
    def end(child):
        """mpirun ends its ranks, which are in process groups of their own, when it is asked to; not when it is killed."""
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def clocks(lines):
    """Of lines of gpu.csv: medians over the samples at which a GPU was busy. Clocks that differ between contenders would explain a difference."""
    busy = []
    for line in lines.splitlines():
        try:
            _, mhz, watts, use = (float(word) for word in line.split(","))
        except ValueError:  # a line half written, or a GPU that does not tell
            continue
        if use >= 80:
            busy.append((mhz, watts))
    return dict(sm_mhz=headline_table.quantile([b[0] for b in busy], 0.5) if busy else None,
                watts=headline_table.quantile([b[1] for b in busy], 0.5) if busy else None)


def lines_of_json(text):
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                pass


def reason(code, text, err_path, limit_s):
    """Why a run gave no result, in one line."""
    if code is None:
        return f"no result after {limit_s:.0f} s"
    for line in lines_of_json(text):
        if "error" in line:
            return line["error"]
    with open(err_path, errors="replace") as file:
        said = [line.strip() for line in file.readlines()[1:] if line.strip()]
    said = [line for line in said if not re.match(OF_MPIRUN, line)]
    for line in said:
        if re.search(r"out of memory|OutOfMemory", line, re.IGNORECASE):
            return f"out of memory: {line}"[:300]
    telling = [line for line in said if re.search(r"error|exception|cannot|not found|needs", line, re.IGNORECASE)]
    return f"exit code {code}: {(telling or said or ['it said nothing'])[-1]}"[:300]


class Case:
    """One row of the issue of speed: shapes, floor, and who takes part."""

    def __init__(self, name, args, runner, work, kept):
        match = re.fullmatch(r"([^/]+)_b(\d+)", name)
        if not match:
            raise ValueError(f"a case is CONFIG_bBATCH, CONFIG a file in --configs without .json, not '{name}'")
        self.name, self.args, self.runner, self.work, self.kept = name, args, runner, work, kept
        self.group = f"{name}, {args.ranks} GPU{'s' * (args.ranks > 1)}"
        self.path = os.path.join(args.configs, match[1] + ".json")
        self.sets = [f"train.micro_batch={match[2]}", *args.sets]
        self.runs, self.left_out, self.sdpa = [], [], None
        self.out_of_budget = {}  # round: what it did without
        self.plan = self.ask("plan", ["--world", str(args.ranks), "--machine", args.machine, "--json"], json.loads)
        self.config = self.ask("config show", [], effective)
        shape = {**self.plan["model"], **self.plan["batch"]}
        shape["tokens_per_step_per_rank"] = shape["tokens_per_step"] // args.ranks
        self.shape = shape
        for key in ("kv_heads", "head_dim", "ffn", "seq_len"):
            self.config["model"][key] = shape[key]
        self.config_path = os.path.join(work, name + ".json")
        with open(self.config_path, "w") as file:
            json.dump(self.config, file)
        wanted = wanted_peers(args, shape)
        fit = ON_ONE if args.ranks == 1 else ON_MANY
        self.peers = [p for p in wanted if p in fit]
        self.left_out += [f"{p}: not for {args.ranks} rank{'s' * (args.ranks > 1)}" for p in wanted if p not in fit]
        if args.llmc and shape["family"] == "gpt2":
            self.peers.append("llm.c")

    def ask(self, verb, flags, read):
        command = [self.args.binary, *verb.split(), self.path, *flags]
        for item in self.sets + ["execution.backend=cpu"] * (self.args.device == "cpu"):
            command += ["--set", item]
        code, text, _, err, _ = self.runner.run(f"{self.name} {verb}", command)
        if code != 0:
            raise ValueError(f"{self.name}: {reason(code, text, err, self.args.run_timeout_s)}")
        return read(text)

    def floor(self):
        """(ms, where from): the slower of all arithmetic and memory traffic and all wire traffic, each op at the machine's rate."""
        measured = [r["raw"]["floor_ms"] for r in self.runs if r["ok"] and r["variant"] == "millrace" and "floor_ms" in r["raw"]]
        if measured:
            return sorted(measured)[len(measured) // 2], "measured by bench"
        kinds = self.plan["roofline"]["by_kind"]
        local = sum(k["seconds"] for k in kinds if not k["wire_bytes"])
        wire = sum(k["seconds"] for k in kinds if k["wire_bytes"])
        return 1e3 * max(local, wire), f"roofline of millrace plan --machine {self.args.machine}"

    def failed(self):
        """Whether ours failed, or every run of a peer: nothing is compared then."""
        peers = [r["ok"] for r in self.runs if r["variant"] in ON_ONE + ON_MANY]
        return any(not r["ok"] and r["variant"] in OURS for r in self.runs) or (bool(peers) and not any(peers))

    def all_left_out(self):
        return self.left_out + [f"of round {r} {', '.join(labels)}, the budget of {self.args.budget_s:.0f} s being spent"
                                for r, labels in self.out_of_budget.items()]

    def ours(self, variant, ranks):
        sets = [*self.sets, f"run.dir={self.work}/run"]
        sets += execution_of(variant, self.args.device, os.path.join(self.work, f"tuning_{self.name}_{variant.replace(' ', '_')}.json"))
        steps = ["--steps", str(self.args.steps), "--warmup", str(self.args.warmup), "--json"]
        if variant == "millrace" and not any(r["variant"] == variant for r in self.runs):
            steps.append("--floor")  # after the timed steps
        return runs.Program(self.args.binary, ranks, self.args.oversubscribe).command("bench", self.path, sets, steps)

    def torch(self, variant, sdpa):
        return self.runner.mpi(self.args.ranks, [self.args.python, os.path.join(HERE, "peers", "torch_bench.py"), self.config_path, "--variant", variant,
                                                 "--sdpa", sdpa, "--steps", str(self.args.steps), "--warmup", str(self.args.warmup),
                                                 "--device", self.args.device])

    def once(self, round_, variant, sdpa=None):
        """Runs `variant` and remembers how it went. One that failed is not tried again."""
        past = [r for r in self.runs if r["variant"] == variant and r["sdpa"] == sdpa]
        if any(not r["ok"] for r in past):
            return
        label = variant + (f" ({sdpa})" if sdpa else "")
        asked = json.dumps([self.name, self.sets, variant, sdpa, self.args.ranks, self.args.steps, self.args.warmup, self.args.device])
        row_id = f"{self.group}/{label}/{round_}"
        if self.kept.has(row_id, asked):
            self.runs.append(next(row for row in self.kept.data["rows"] if row["id"] == row_id)["result"])
            return
        expected = max((r["seconds"] for r in past), default=0)
        if self.runner.elapsed() + expected > self.args.budget_s:
            self.out_of_budget.setdefault(round_, []).append(label)
            print(f"[{self.runner.elapsed():5.0f} s] {self.name} {label}: left out, the budget is spent", file=sys.stderr, flush=True)
            return
        if variant in OURS or variant == ALONE:
            command, read = self.ours(variant, 1 if variant == ALONE else self.args.ranks), read_ours
        elif variant == "llm.c":
            command, read = self.runner.mpi(self.args.ranks, llmc.command(self.args.llmc, self.shape, self.config, self.args, self.work)), llmc.read
        else:
            command, read = self.torch(variant, sdpa), read_torch
        code, text, seconds, err, gpus = self.runner.run(f"{self.name} {label} {round_}", command)
        found = read(text, self.shape, self.args.warmup) if code == 0 else None
        run = dict(variant=variant, sdpa=sdpa, round=round_, ok=bool(found), seconds=round(seconds, 1), command=runs.as_typed(command, self.work),
                   **clocks(gpus))
        run.update(found or dict(error=reason(code, text, err, self.args.run_timeout_s), raw=None))
        if found and found.get("parameters", self.shape["parameters"]) != self.shape["parameters"]:
            run.update(ok=False, error=f"another model: {found['parameters']} parameters, ours has {self.shape['parameters']}")
        if found and self.args.device == "cuda" and (found["raw"] or {}).get("device") == "cpu":
            run.update(ok=False, error="it ran on the CPU")
        if found and not math.isfinite((found["raw"] or {}).get("loss_last", 0.0)):
            run.update(ok=False, error="does not train: its last loss is no finite number")
        self.runs.append(run)
        self.kept.add(self.group, label, round_, asked, run["command"], seconds, result=run)
        said = f"{headline_table.quantile(run['step_ms'], 0.5):.2f} ms" if run["ok"] else run["error"]
        print(f"[{self.runner.elapsed():5.0f} s] {self.name} round {round_}/{self.args.rounds} {label}: {said} ({seconds:.0f} s)", file=sys.stderr,
              flush=True)

    def round(self, number, write):
        self.once(number, "millrace")
        write()
        for peer in self.peers:
            if peer == "llm.c":
                self.once(number, peer)
            elif self.sdpa is not None:
                self.once(number, peer, self.sdpa)
            else:
                self.choose_attention(number, peer)
            write()
        self.once(number, "millrace deterministic")
        write()
        if self.args.ranks > 1:
            self.once(number, ALONE)
            write()

    def choose_attention(self, number, peer):
        for sdpa in self.args.sdpa:
            self.once(number, peer, sdpa)
        fine = [(headline_table.quantile(r["step_ms"], 0.5), r["sdpa"]) for r in self.runs if r["variant"] == peer and r["ok"]]
        if fine:
            self.sdpa = min(fine)[1]


def read_ours(text, _shape, _warmup):
    raw = next((v for v in lines_of_json(text) if "step_ms_samples" in v), None)
    if raw and "floor" in raw:
        del raw["floor"]["alone"]  # a line per shape of an op: long, and no table has it
    return raw and dict(step_ms=raw["step_ms_samples"], host_us=raw["host_us_per_step"], working_bytes=raw["arena_bytes"], reserved_bytes=None,
                        device_bytes=raw["peak_bytes"], raw=raw)


def read_torch(text, _shape, _warmup):
    raw = next((v for v in lines_of_json(text) if "step_ms" in v), None)
    return raw and dict(step_ms=raw["step_ms"], host_us=raw["host_us"], working_bytes=raw["peak_allocated_bytes"],
                        reserved_bytes=raw["peak_reserved_bytes"], device_bytes=raw["device_used_bytes"], parameters=raw["parameters"], raw=raw)


def execution_of(variant, device, tuning):
    """What one of ours is run with. The CPU tunes nothing and is always deterministic."""
    if device == "cpu":
        return ["execution.backend=cpu"]
    return [f"execution.tuning_file={tuning}", f"execution.deterministic={OURS.get(variant, 'false')}"]


def effective(text):
    """The values of `config show`, defaults filled in, as nested dictionaries."""
    config, decoder = {}, json.JSONDecoder()
    for line in text.splitlines():
        path, _, rest = line.partition(" ")
        if not rest.strip() or path == "note:":  # what has no effect, at the end
            continue
        *outer, last = path.split(".")
        place = config
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = decoder.raw_decode(rest.strip())[0]
    return config


def machine_of(device):
    if device == "cpu":
        return "cpu"
    try:
        name = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        name = ""
    return "h200" if "H200" in name else "h100"


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def interrupt(signal_number, _frame):
    """Ends as Ctrl-C does: the program that runs is ended too, and what is temporary goes."""
    sys.exit(128 + signal_number)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES, help="default: " + " ".join(CASES))
    parser.add_argument("--only", default="", help="of the cases, these, separated by commas")
    parser.add_argument("--ranks", type=at_least_one, default=1)
    parser.add_argument("--rounds", type=at_least_one, default=2)
    parser.add_argument("--steps", type=at_least_one, default=20)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--out", required=True)
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="for every case, on top of its own")
    parser.add_argument("--peers", help="of " + ", ".join(ON_ONE + ON_MANY) + "; none for no peer; default: by ranks and size")
    parser.add_argument("--sdpa", default="cudnn,flash", help="attention back-ends of PyTorch to try: cudnn, flash, efficient, math, auto")
    parser.add_argument("--llmc", help="llm.c's train_gpt2cu, built with cuDNN")
    parser.add_argument("--megatron", metavar="WHEEL", help="Megatron-FSDP's wheel (PyPI megatron-fsdp): larger cases on several GPUs get it as a peer")
    parser.add_argument("--name", help="of the machine, in the name of the file of rows; default: x and the number of ranks")
    parser.add_argument("--commit", help="of the program; default: what its package or git says")
    parser.add_argument("--earlier", default=str(results.FOLDER), help="folder whose rows of this commit and machine count as run")
    parser.add_argument("--binary", default="bin/millrace")
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--configs", default=os.path.normpath(os.path.join(HERE, "..", "..", "configs")))
    parser.add_argument("--machine", choices=("h100", "h200", "cpu"), help="whose rates the floor takes; default: this machine's")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--oversubscribe", action="store_true", help="more ranks than cores")
    parser.add_argument("--run-timeout-s", type=float, default=400)
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="start no run that would end after this")
    args = parser.parse_args()
    args.sdpa = args.sdpa.split(",")
    for sdpa in args.sdpa:
        if sdpa not in SDPA:
            parser.error(f"--sdpa: '{sdpa}' is none of {', '.join(SDPA)}")
    if not args.run_timeout_s > 0:
        parser.error(f"--run-timeout-s: {args.run_timeout_s:g} is not above 0")
    if args.peers is not None:
        args.peers = [p for p in args.peers.split(",") if p != "none"]
        for peer in args.peers:
            if peer not in ON_ONE + ON_MANY:
                parser.error(f"--peers: '{peer}' is none of {', '.join(ON_ONE + ON_MANY)}")
    for name in filter(None, args.only.split(",")):
        if name not in args.cases:
            parser.error(f"--only: '{name}' is none of the cases {', '.join(args.cases)}")
    try:
        os.makedirs(os.path.join(args.out, "logs"), exist_ok=True)
    except OSError as e:
        parser.error(f"--out: {args.out}: {e.strerror}")
    args.cases = [c for c in args.cases if not args.only or c in args.only.split(",")]
    if args.megatron and not os.path.exists(args.megatron):
        parser.error(f"--megatron: no file {args.megatron}")
    args.name = args.name or f"x{args.ranks}"
    args.machine = args.machine or machine_of(args.device)
    return args


def main():
    args = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, interrupt)
    runner, work = Runner(args), tempfile.mkdtemp(prefix="headline_")
    host = dict(command=runs.as_typed(["python3", os.path.relpath(__file__), *sys.argv[1:]]), host=runs.host_of(args.binary), ranks=args.ranks, rounds=args.rounds,
                steps=args.steps, warmup=args.warmup, date=str(datetime.date.today()))
    cases, failures = [], []
    file = f"headline_{args.name}.json"
    kept = results.Results(os.path.join(args.out, file), file[:-5], args.commit or results.commit_of(args.binary), host["host"], host["command"],
                           earlier=os.path.join(args.earlier, file))

    def write():
        headline_table.write(args.out, host, cases, failures)

    try:
        for name in args.cases:
            try:
                cases.append(Case(name, args, runner, work, kept))
            except ValueError as e:
                failures.append(str(e))
                print(e, file=sys.stderr, flush=True)
                write()
                continue
            for number in range(1, args.rounds + 1):
                cases[-1].round(number, write)
        write()
    finally:
        runner.close()
        shutil.rmtree(work, ignore_errors=True)
    with open(os.path.join(args.out, "table.md")) as table:
        print(table.read(), end="")
    return 1 if failures or any(case.failed() for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
