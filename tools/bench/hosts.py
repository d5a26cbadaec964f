#!/usr/bin/env python3
"""HOSTS.md and figures/hosts.svg: Llama 8B and GPT-2 1558M on 8 to 4,096 GPUs, eight to a host, by `millrace plan`. Simulation alone: nothing here was measured.

  python3 -B tools/bench/hosts.py           # write both again
  python3 -B tools/bench/hosts.py --check   # exit 1 when the plans give other ones

Two tables a model: every GPU reads one microbatch of the configuration, so that tokens per step grow with the GPUs; and a step of 512 sequences, whatever the GPUs. Standard library only.
"""
import argparse, json, pathlib, subprocess, sys, tempfile
from typing import NamedTuple, Optional

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOST = 8
SEQUENCES = 512
WORLDS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


class Model(NamedTuple):
    title: str
    name: str
    batch: int  # sequences of a GPU's microbatch
    splits: bool  # whether ranks of tensor divide its heads and positions


MODELS = [Model("Llama 8B, T 8192", "llama_8b", 1, True), Model("GPT-2 1558M, T 1024", "gpt2_1558m", 16, False)]


class Plan(NamedTuple):
    name: str
    copy: Optional[int]  # ranks of a copy; None: all
    reshard: str = "never"
    blocks: int = 1  # of a unit
    tensor: int = 1
    context: int = 1


GROWING = [Plan("shard", None, "after_forward"), Plan("shard, kept gathered", None), Plan("shard, kept, 4 blocks a unit", None, blocks=4),
           Plan("HSDP, a copy a host", HOST, "after_forward"), Plan("HSDP, kept gathered", HOST),
           Plan("tensor 2 x shard, kept", None, tensor=2), Plan("tensor 2 x HSDP, kept", HOST, tensor=2)]
FIXED = [Plan("shard, kept, 4 blocks a unit", None, blocks=4), Plan("HSDP, kept gathered", HOST)] + \
        [Plan(f"tensor {n} x HSDP, kept", HOST, tensor=n) for n in (2, 4, 8)] + [Plan(f"context {n} x HSDP, kept", HOST, context=n) for n in (2, 4, 8)]
COLOURS = ["#4269d0", "#8f9ccc", "#3ca951", "#efb118", "#ff725c", "#6cc5b0", "#a463f2", "#9c6b4e"]
MACHINE = ROOT / "configs/machines/h200.json"
COMMENT = "<!-- made by hosts.py -->"


def batch_of(model, plan, world, sequences):
    """Microbatch and accumulate of a data rank, or None where its ranks have less than a sequence. `sequences` of a step; None: a microbatch for each GPU."""
    group = plan.tensor * plan.context
    if sequences is None:
        return model.batch * group, 1
    own = sequences * group // world
    micro = min(own, model.batch * group)
    return (micro, own // micro) if own else None


def run(program, model, plan, world, sequences, machine):
    """Predicted figures of one plan, or None where there is none or it does not fit the device."""
    batch, copy = batch_of(model, plan, world, sequences), plan.copy or world
    if batch is None:
        return None
    words = {"train.micro_batch": batch[0], "train.accumulate": batch[1], "sharding.reshard": plan.reshard, "sharding.blocks_per_unit": plan.blocks,
             "parallel.replicate": world // copy, "parallel.tensor": plan.tensor, "parallel.context": plan.context, "execution.backend": "cuda"}
    if copy > HOST:  # a copy on several hosts goes over NCCL
        words["execution.peer_memory"] = "off"
    command = [program, "plan", f"configs/{model.name}.json", "--world", str(world), "--machine", str(machine), "--json"]
    for key, value in words.items():
        command += ["--set", f"{key}={value}"]
    report = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    memory, time = report["memory"], report["time"]
    if memory.get("device_has_bytes") and memory["device_bytes"] > memory["device_has_bytes"]:
        return None
    return {"ms": time["step_s"] * 1e3, "exposed": time["exposed_communication_s"] / time["step_s"], "tokens": time["tokens_per_s_per_rank"]}


def variants(folder):
    """Machine files of the H200 with one thing out of the way each: what changes most is what limits."""
    base = json.loads((ROOT / "configs/machines/h200.json").read_text())
    made = {}
    for name, section, changes in (("hops between hosts", "network", {"hop_us": 0}), ("cards", "network", {"gb_s": 1e6}), ("NVLink", "link", {"gb_s": 1e6, "peer_gb_s": 1e6})):
        machine = json.loads(json.dumps(base))
        machine[section].update(changes)
        made[name] = folder / f"{section}_{list(changes)[0]}.json"
        made[name].write_text(json.dumps(machine))
    return made


def limit(program, case, machines, result):
    """What would make the step fastest, were it free; the products where none is worth 2%."""
    gains = {name: result["ms"] / run(program, *case, machine)["ms"] - 1 for name, machine in machines.items()}
    name = max(gains, key=gains.get)
    return f"{name}, {100 * gains[name]:.0f}%" if gains[name] > 0.02 else "the products"


def cell(result, best):
    if result is None:
        return "-"
    text = f"{result['ms']:.0f} ms, {100 * result['exposed']:.0f}%"
    return f"**{text}**" if result is best else text


def table(program, model, plans, sequences, machines):
    """Rows of text, and {plan: tokens per second and GPU by world}."""
    rows, series = [], {plan.name: [] for plan in plans}
    for world in WORLDS:
        found = [run(program, model, plan, world, sequences, MACHINE) for plan in plans]
        for plan, result in zip(plans, found):
            series[plan.name].append(result and result["tokens"])
        best = max(filter(None, found), key=lambda result: result["tokens"])
        case = (model, plans[found.index(best)], world, sequences)
        rows.append(f"| {world} | " + " | ".join(cell(result, best) for result in found) + f" | {limit(program, case, machines, best)} |")
    return ["| GPUs | " + " | ".join(plan.name for plan in plans) + " | what limits the fastest |", "|--:|" + "--:|" * len(plans) + "---|", *rows, ""], series


def tables(program):
    text, panels = [], []
    with tempfile.TemporaryDirectory() as folder:
        machines = variants(pathlib.Path(folder))
        for sequences, all_plans in ((None, GROWING), (SEQUENCES, FIXED)):
            for model in MODELS:
                title = f"{model.title}, " + (f"{sequences} sequences a step" if sequences else f"{model.batch} sequence{'s' * (model.batch > 1)} a GPU")
                rows, series = table(program, model, [plan for plan in all_plans if model.splits or plan.tensor == 1], sequences, machines)
                text += ["## " + title, "", *rows]
                panels.append((title, series))
    return "\n".join(text), panels


def panel(title, series, x0, y0):
    """Tokens per second and GPU over the number of GPUs."""
    width, height, most = 460, 300, 1.08 * max(value for values in series.values() for value in values if value)
    across = lambda i: x0 + width * i / (len(WORLDS) - 1)
    down = lambda value: y0 + height * (1 - value / most)
    out = [f'<text x="{x0}" y="{y0 - 16}" font-size="14">{title}: tokens/s per GPU, simulated</text>']
    for i, world in enumerate(WORLDS):
        out.append(f'<text x="{across(i):.1f}" y="{y0 + height + 18}" text-anchor="middle">{world}</text>')
    for part in range(5):
        value = most * part / 4
        out.append(f'<line x1="{x0}" x2="{x0 + width}" y1="{down(value):.1f}" y2="{down(value):.1f}" stroke="#ddd"/>'
                   f'<text x="{x0 - 6}" y="{down(value) + 4:.1f}" text-anchor="end">{value / 1e3:.1f}k</text>')
    for i, (colour, (plan, values)) in enumerate(zip(COLOURS, series.items())):
        points = " ".join(f"{across(i):.1f},{down(value):.1f}" for i, value in enumerate(values) if value)
        x, y = x0 + 230 * (i % 2), y0 + height + 44 + 20 * (i // 2)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
                   f'<line x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/><text x="{x + 30}" y="{y}">{plan}</text>')
    return out


def picture(panels):
    """Two panels in a row."""
    left, top, across, down = 60, 40, 540, 470
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * across} {down * (len(panels) // 2)}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>']
    for number, (title, series) in enumerate(panels):
        out += panel(title, series, left + across * (number % 2), top + down * (number // 2))
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--program", default=str(ROOT / "bazel-bin/tools/cli/millrace_cpu"))
    args = parser.parse_args()
    page, figure = HERE / "HOSTS.md", HERE / "figures/hosts.svg"
    text, panels = tables(args.program)
    old = page.read_text()
    new, svg = old[:old.index(COMMENT)] + COMMENT + "\n" + text, picture(panels)
    if args.check:
        return 0 if (old, figure.read_text()) == (new, svg) else "HOSTS.md or figures/hosts.svg: hosts.py gives another one"
    page.write_text(new)
    figure.write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
