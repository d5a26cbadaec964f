"""llm.c's train_gpt2cu as a peer of headline.py: its command line at its best knobs, its data and its output. Standard library only.

Facts of llm.c at f1e2ace: data files are 256 int32 of header (20240520, 1, count of tokens) and uint16 tokens; -e dDEPTH starts a GPT-2 of that depth
from random weights; -z 1 shards the optimizer, -r 0 recomputes nothing, -ge 1 has GELU in the matmul's epilogue; it measures each step with CUDA events
and waits for the device after each.
"""
import array, os, random, re

DEPTHS = {6: 384, 12: 768, 24: 1024, 36: 1280, 48: 1600}
MAGIC, VERSION, VOCAB = 20240520, 1, 50257


def write_tokens(path, count):
    """`count` random tokens."""
    source = random.Random(5)
    header = array.array("i", [MAGIC, VERSION, count] + [0] * 253)
    tokens = array.array("H", (source.randrange(VOCAB) for _ in range(count)))
    with open(path, "wb") as file:
        header.tofile(file)
        tokens.tofile(file)


def command(program, shape, config, args, folder):
    """Arguments of one run, without mpirun; writes its data into `folder`. A shape that llm.c does not know gets a command that says so."""
    if DEPTHS.get(shape["layers"]) != shape["d_model"]:
        return ["sh", "-c", f"echo \"error: llm.c has no GPT-2 of {shape['layers']} layers of {shape['d_model']}\" >&2; exit 1"]
    data = os.path.join(folder, f"tokens_{shape['tokens_per_step']}.bin")
    if not os.path.exists(data):
        write_tokens(data, 4 * shape["tokens_per_step"] + 1)
    knobs = dict(i=data, j=data, e=f"d{shape['layers']}", b=shape["micro_batch"], t=shape["seq_len"], d=shape["tokens_per_step"],
                 l=config["optimizer"]["lr"], c=config["optimizer"]["weight_decay"], x=args.warmup + args.steps, v=1000000, m=1, s=0, r=0,
                 z=1 if args.ranks > 1 else 0, ge=1)
    return [os.path.abspath(program), *(word for key, value in knobs.items() for word in (f"-{key}", str(value)))]


def read(text, shape, warmup):
    """Of llm.c's standard output: step times after the first `warmup`, and device memory in use, where it says it."""
    times = [float(ms) for ms in re.findall(r"^step\s+\d+/\d+ .*?\| ([0-9.]+) ms \|", text, re.MULTILINE)][warmup:]
    used = re.search(r"device memory usage: (\d+) MiB / \d+ MiB", text)
    return dict(step_ms=times, host_us=None, working_bytes=None, reserved_bytes=None, device_bytes=int(used[1]) << 20 if used else None,
                raw=dict(tail=text[-2000:])) if times else None
