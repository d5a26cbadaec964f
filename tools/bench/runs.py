"""Runs of the millrace program, for the scripts in this folder: one call per run, results as Python values. Standard library only."""
import json, os, pathlib, shlex, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def as_typed(command, work=None):
    """`command` in one line, as typed in the root of the repository or of a package: nothing of it says where that, python3 or the script's folder of this run
    (`work`, then WORK) lies."""
    def typed(word):
        key, equals, value = word.rpartition("=")
        path = pathlib.Path(value)
        if value == sys.executable:
            value = "python3"
        elif work is not None and path.is_relative_to(work):
            value = str("WORK" / path.relative_to(work))
        elif path.is_relative_to(ROOT):
            value = str(path.relative_to(ROOT))
        elif path.is_absolute():
            value = "/".join(path.parts[-2:]) if path.parent.name == "bin" else path.name
        return key + equals + value
    return shlex.join(typed(word) for word in command)


class Program:
    """A program and how many ranks to start: on one rank it is started by itself, else by mpirun on this host."""

    def __init__(self, binary, ranks, oversubscribe=False):
        self.binary, self.ranks, self.oversubscribe = binary, ranks, oversubscribe

    def command(self, verb, config, sets, flags=()):
        command = [self.binary, verb, config, *flags]
        for item in sets:
            command += ["--set", item]
        return self.launched(command)

    def launched(self, command):
        """`command`, of whatever program, on as many ranks."""
        if self.ranks == 1:
            return command
        mpi = ["mpirun", "-n", str(self.ranks), "--bind-to", "none"]
        if self.oversubscribe:
            mpi += ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        return mpi + command

    def call(self, verb, config, sets, flags=(), env=None, timeout=None):
        """Standard output; ends the script with the program's own words when it fails."""
        command = self.command(verb, config, sets, flags)
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **(env or {}))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def train(self, config, sets, folder, **more):
        """(lines of metrics.jsonl that are steps, summary.json)."""
        self.call("train", config, sets + [f"run.dir={folder}"], **more)
        with open(os.path.join(folder, "metrics.jsonl")) as lines:
            steps = [json.loads(line) for line in lines]
        with open(os.path.join(folder, "summary.json")) as text:
            return [s for s in steps if "step_ms" in s], json.load(text)

    def bench(self, config, sets, steps, warmup, **more):
        return json.loads(self.call("bench", config, sets, ["--steps", str(steps), "--warmup", str(warmup), "--json"], **more))

    def plan(self, config, sets, world):
        """The plan's figures; on one process, whatever the ranks."""
        return json.loads(Program(self.binary, 1).call("plan", config, sets, ["--world", str(world), "--json"]))


def host_of(binary, cpu=False):
    """What a table was measured on, from nvidia-smi: "2 x NVIDIA H200, driver 580"; the CPU's name where there is none or `cpu`."""
    try:
        if cpu:
            raise OSError("not asked for")
        lines = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True,
                               text=True, check=True).stdout.strip().splitlines()
        name, driver = lines[0].split(", ")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"{len(visible.split(',')) if visible else len(lines)} x {name}, driver {driver}"
    except (OSError, subprocess.CalledProcessError, IndexError):
        with open("/proc/cpuinfo") as info:
            return next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "an unknown CPU")
