#!/usr/bin/env python3
"""Long runs on real bytes, from three seeds each: FP8 beside bf16, and a hybrid beside the same model in PyTorch.

  python3 -B tools/bench/long_runs.py OUT [--program bin/millrace] [--text FILE] [--only REGEX] [--jobs N] [--budget-s S]

Run from an unpacked package. A row is one run: of a model (group), an encoding of its linears or "torch" (variant) and a seed (round), which decides initial weights and the order of
samples. Rows go to OUT/long_runs_DEVICE.json, each as soon as it has ended, in order of worth; rows that are there are not run again. A row has the mean loss of its last fifth of
steps, at most 200, held-out loss before and after, and means of every 50 steps.
The text is FILE, or the first 48 MiB of the Python sources that come with python3, by name; its last tenth is held out. Its SHA-256 is part of what a row was asked for.
"torch" needs a python3 with torch, safetensors and mamba_ssm's folders ops/triton and utils (peers/torch_hybrid.py). Its row has two runs side by side, of PyTorch and of
Millrace, from PyTorch's initial weights on the same batches. MAMBA_DETERMINISTIC=1 in the environment spares mamba_ssm the measuring of some 200 forms of its kernels.
Standard library only.
"""
import argparse, concurrent.futures, hashlib, json, pathlib, re, site, subprocess, sys, sysconfig, tempfile, threading, time
import results, runs

TEXT_BYTES = 48 << 20
LAST, CHUNK = 200, 50
CPU = "execution.backend=cpu"
HERE = pathlib.Path(__file__).resolve().parent
# Sizes that a run of each model has here, and the first guess at its seconds.
MODELS = {
    "gpt2_124m": (3500, 40, {"train.micro_batch": 4, "optimizer.lr": 6e-4, "optimizer.schedule.min_lr": 6e-5}),
    "llama_1b": (1000, 60, {"train.micro_batch": 1, "model.seq_len": 2048, "optimizer.lr": 3e-4, "optimizer.schedule.min_lr": 3e-5}),
    "nemotron_h_1b": (1000, 60, {"train.micro_batch": 1, "model.seq_len": 1024, "optimizer.lr": 3e-4, "optimizer.schedule.min_lr": 3e-5}),
}
SEEDS = (0, 1, 2)
ROWS = ([("gpt2_124m", variant, seed) for seed in SEEDS for variant in ("compute", "fp8_tensor")] + [("gpt2_124m", "fp8_block", seed) for seed in SEEDS] +
        [("llama_1b", variant, seed) for seed in SEEDS for variant in ("compute", "fp8_tensor")] + [("llama_1b", "fp8_block", seed) for seed in SEEDS] +
        [("nemotron_h_1b", "torch", 0)] + [("nemotron_h_1b", "compute", seed) for seed in SEEDS] + [("nemotron_h_1b", "torch", seed) for seed in SEEDS[1:]])


def python_sources(path):
    """The first TEXT_BYTES of the .py files below the folders of python3's packages, then of its library."""
    folders = [sysconfig.get_paths()["purelib"], *site.getsitepackages(), sysconfig.get_paths()["stdlib"]]
    with open(path, "wb") as out:
        for folder in dict.fromkeys(folders):
            for source in sorted(pathlib.Path(folder).rglob("*.py")):
                out.write(source.read_bytes()[:TEXT_BYTES - out.tell()])
                if out.tell() == TEXT_BYTES:
                    return
    sys.exit(f"long_runs.py: the Python sources here have {path.stat().st_size} bytes; {TEXT_BYTES} are needed, or --text")


def settings(model, variant, seed, text, sets, steps):
    """Of a run, in the order in which they apply."""
    warmup = min(200, steps // 10)
    of = {"data.kind": "text", "data.path": str(text), "data.eval_batches": 64, "data.shuffle_seed": seed, "train.seed": seed, "train.steps": steps,
          "train.eval_every": steps, "optimizer.weight_decay": 0.1, "optimizer.betas": [0.9, 0.95], "optimizer.eps": 1e-8, "optimizer.clip": 1.0,
          "optimizer.schedule.kind": "cosine", "optimizer.schedule.warmup": warmup, "optimizer.schedule.decay_steps": steps - warmup,
          "checkpoint.every": 0, "checkpoint.at_end": False, **MODELS[model][2]}
    if variant != "torch":
        of["precision.linear"] = variant
    if CPU not in sets:
        of["execution.tune"] = False  # nothing is timed
    return [f"{key}={json.dumps(value) if not isinstance(value, str) else value}" for key, value in of.items()] + sets


def summed_up(losses):
    last = min(LAST, len(losses) // 5)
    return dict(steps=len(losses), last=last, last_mean=sum(losses[-last:]) / last, first=losses[0],
                means=[round(sum(losses[i:i + CHUNK]) / len(losses[i:i + CHUNK]), 5) for i in range(0, len(losses), CHUNK)])


def ours(program, config, sets, folder, timeout):
    steps, summary = program.train(config, sets, folder / "run", timeout=timeout)
    return dict(summed_up([s["loss"] for s in steps]), skipped=steps[-1]["skipped"], held_out_before=summary["eval_before"], held_out=summary["eval_after"],
                plan_hash=summary["plan_hash"], parameter_hash=summary["param_hash"])


def peer(program, config, sets, folder, python, timeout):
    """PyTorch from weights of its own, whose steps end where the time does, and beside it Millrace from the same weights on the same batches: "ours"."""
    end, weights, rest = time.monotonic() + timeout, folder / "weights", lambda: max(1, end - time.monotonic())
    (folder / "config.json").write_text(json.dumps(merged(json.loads(pathlib.Path(config).read_text()), sets)))
    seed = next(item.split("=")[1] for item in sets if item.startswith("train.seed="))
    words = [python, "-B", HERE / "peers" / "torch_train.py", folder / "config.json", "--weights", weights, "--out", folder / "losses.jsonl", "--bf16", "--start", seed,
             "--device", "cpu" if CPU in sets else "cuda", "--seconds", str(max(1, rest() - 25))]
    with open(folder / "said", "w") as said:
        torch = subprocess.Popen(words, stdout=said, stderr=said)
    try:
        while torch.poll() is None and not (weights / "config.json").exists():
            time.sleep(0.5)
        same = [item for item in sets if not item.startswith("train.seed=")] + [f"model.init_from={weights}"]
        together = ours(program, config, same, folder, rest()) if (weights / "config.json").exists() else None
        code = torch.wait(rest())
    except subprocess.TimeoutExpired:
        code = 0  # its steps so far count
    finally:
        torch.kill()
    if code != 0 or not (folder / "losses.jsonl").exists():
        sys.exit(f"torch_train.py ended with {torch.returncode}: {(folder / 'said').read_text()[-1500:]}")
    with open(folder / "losses.jsonl") as lines:
        losses = [json.loads(line)["loss"] for line in lines if line.endswith("\n")]
    if len(losses) < 5:
        sys.exit(f"torch_train.py came to {len(losses)} steps: {(folder / 'said').read_text()[-1500:]}")
    return dict(summed_up(losses), ours=together)


def merged(config, sets):
    """`config` with `sets` in it."""
    for item in sets:
        path, value = item.split("=", 1)
        *outer, last = path.split(".")
        place = config
        for key in outer:
            place = place.setdefault(key, {})
        try:
            place[last] = json.loads(value)
        except json.JSONDecodeError:
            place[last] = value
    return config


class Calls:
    """Rows that are run side by side."""

    def __init__(self, args, out, text, sha256):
        self.args, self.text, self.sha256, self.begin = args, text, sha256, time.monotonic()
        self.program, self.lock, self.out = runs.Program(args.program, 1), threading.Lock(), out
        self.failed = self.left = 0

    def rest(self):
        return self.args.budget_s - (time.monotonic() - self.begin)

    def run(self, model, variant, seed):
        args, name = self.args, f"{model}/{variant}/{seed}"
        steps, guess, _ = MODELS[model]
        steps = args.steps or steps
        asked = " ".join(settings(model, variant, seed, f"sha256:{self.sha256}", args.sets, steps))
        with self.lock:
            if self.out.has(name, asked):
                return
            needed = self.out.seconds_of(model) or guess
        if self.rest() < needed:
            self.left += 1
            return print(f"{name}: left out, the budget of {args.budget_s:.0f} s is nearly spent", flush=True)
        sets, config = settings(model, variant, seed, self.text, args.sets, steps), f"configs/{model}.json"
        begin, found = time.monotonic(), {}
        with tempfile.TemporaryDirectory(dir=args.out) as folder:
            try:
                folder = pathlib.Path(folder)
                found["result"] = (peer(self.program, config, sets, folder, args.python, self.rest()) if variant == "torch" else
                                   ours(self.program, config, sets, folder, self.rest()))
            except (SystemExit, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as e:
                found["error"] = " ".join(str(e).split())[-1500:]
                self.failed += 1
            seconds = time.monotonic() - begin
            with self.lock:  # before the folder goes, which takes a while
                self.out.add(model, variant, seed, asked, f"{'torch_train.py' if variant == 'torch' else 'millrace train'} {config}", seconds, **found)
        said = found.get("result", {})
        print(f"{name}: {seconds:.0f} s, " + (found.get("error", "")[-300:] or f"last {said['last']}: {said['last_mean']:.4f}, held out {said.get('held_out')}"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--program", default="bin/millrace")
    parser.add_argument("--python", default="python3", help="has torch")
    parser.add_argument("--text", help="a file to train on")
    parser.add_argument("--device", default="", help="of the file's name; what nvidia-smi says unless given")
    parser.add_argument("--only", default=".", help="of GROUP/VARIANT/ROUND")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side on the card: nothing is timed here")
    parser.add_argument("--steps", type=int, default=0, help="for tests: of all models")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="for tests: of all runs")
    parser.add_argument("--budget-s", type=float, default=86400)
    args = parser.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    text = pathlib.Path(args.text) if args.text else out / "text"
    if not args.text and not text.exists():
        python_sources(text)
    sha256 = hashlib.sha256(text.read_bytes()).hexdigest()
    machine = runs.host_of(args.program, cpu=CPU in args.sets)
    name = "long_runs_" + (args.device or ("h200" if "H200" in machine else "h100" if "H100" in machine else "other"))
    rows = [row for row in ROWS if re.search(args.only, "/".join(map(str, row)))]
    file = results.Results(out / f"{name}.json", name, results.commit_of(args.program), machine, f"python3 -B tools/bench/long_runs.py OUT --jobs {args.jobs}")
    file.data.setdefault("text", dict(bytes=text.stat().st_size, sha256=sha256, what=args.text and pathlib.Path(args.text).name or "Python sources that come with python3"))
    calls = Calls(args, file, text, sha256)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in [pool.submit(calls.run, *row) for row in rows]:
            done.result()
    if calls.failed:
        return 1
    if calls.left:
        print(f"{calls.left} rows are left: run it again")
        return 3
    print("nothing is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
