#!/usr/bin/env python3
"""HOSTS.md and figures/hosts.svg: Llama 8B and GPT-2 1558M on 8 to 4,096 GPUs, eight to a host, by `millrace plan`. Simulation alone: nothing here was measured.

  python3 -B tools/bench/hosts.py           # write both again
  python3 -B tools/bench/hosts.py --check   # exit 1 when the plans give other ones

Every GPU reads one microbatch of the configuration, so tokens per step grow with the GPUs. Standard library only.
"""
import argparse, json, pathlib, subprocess, sys, tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOST = 8
WORLDS = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
MODELS = [("Llama 8B, B 1, T 8192", "llama_8b", ["train.micro_batch=1"]), ("GPT-2 1558M, B 16, T 1024", "gpt2_1558m", ["train.micro_batch=16"])]
# name, ranks of a copy (None: all), reshard, blocks per unit.
PLANS = [("shard", None, "after_forward", 1), ("shard, kept gathered", None, "never", 1), ("shard, kept, 4 blocks a unit", None, "never", 4),
         ("HSDP, a copy a host", HOST, "after_forward", 1), ("HSDP, kept gathered", HOST, "never", 1)]
COLOURS = ["#4269d0", "#8f9ccc", "#3ca951", "#efb118", "#ff725c"]
MACHINE = ROOT / "configs/machines/h200.json"
COMMENT = "<!-- made by hosts.py -->"


def run(program, name, sets, world, copy, reshard, blocks, machine):
    """Predicted figures of one plan, or None where it does not fit the device."""
    words = sets + [f"sharding.reshard={reshard}", f"sharding.blocks_per_unit={blocks}", f"parallel.replicate={world // (copy or world)}", "execution.backend=cuda"]
    if (copy or world) > HOST:  # a copy on several hosts goes over NCCL
        words.append("execution.peer_memory=off")
    command = [program, "plan", f"configs/{name}.json", "--world", str(world), "--machine", str(machine), "--json"]
    for word in words:
        command += ["--set", word]
    report = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
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


def limit(program, case, folder_machines, result):
    """What would make the step fastest, were it free; the products where none is worth 2%."""
    gains = {name: result["ms"] / run(program, *case, machine)["ms"] - 1 for name, machine in folder_machines.items()}
    name = max(gains, key=gains.get)
    return f"{name}, {100 * gains[name]:.0f}%" if gains[name] > 0.02 else "the products"


def tables(program):
    text, curves = [], []
    with tempfile.TemporaryDirectory() as folder:
        machines = variants(pathlib.Path(folder))
        for title, name, sets in MODELS:
            rows = []
            series = {plan[0]: [] for plan in PLANS}
            for world in WORLDS:
                found = {}
                for plan, copy, reshard, blocks in PLANS:
                    found[plan] = run(program, name, sets, world, copy, reshard, blocks, MACHINE)
                    series[plan].append(found[plan]["tokens"] if found[plan] else None)
                fit = {plan: result for plan, result in found.items() if result}
                best = max(fit, key=lambda plan: fit[plan]["tokens"])
                _, copy, reshard, blocks = next(plan for plan in PLANS if plan[0] == best)
                cells = ["does not fit" if not found[plan[0]] else "{}{:.0f} ms, {:.0f}%{}".format(*(("**", found[plan[0]]["ms"], 100 * found[plan[0]]["exposed"], "**")
                         if plan[0] == best else ("", found[plan[0]]["ms"], 100 * found[plan[0]]["exposed"], ""))) for plan in PLANS]
                rows.append(f"| {world} | " + " | ".join(cells) + f" | {limit(program, (name, sets, world, copy, reshard, blocks), machines, fit[best])} |")
            text += [f"## {title}", "", "| GPUs | " + " | ".join(plan[0] for plan in PLANS) + " | what limits the fastest |", "|--:|" + "--:|" * len(PLANS) + "---|", *rows, ""]
            curves.append((title, series))
    return "\n".join(text), curves


def picture(curves):
    """Tokens per second and GPU over the number of GPUs, one panel a model."""
    width, height, left, top, panel = 460, 300, 60, 40, 540
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {panel * len(curves)} {height + 130}" font-family="sans-serif" font-size="12">',
           f'<rect width="100%" height="100%" fill="white"/>']
    for number, (title, series) in enumerate(curves):
        x0, most = left + number * panel, 1.08 * max(value for values in series.values() for value in values if value)
        across = lambda i: x0 + width * i / (len(WORLDS) - 1)
        down = lambda value: top + height * (1 - value / most)
        out.append(f'<text x="{x0}" y="24" font-size="14">{title}: tokens/s per GPU, simulated</text>')
        for i, world in enumerate(WORLDS):
            out.append(f'<text x="{across(i):.1f}" y="{top + height + 18}" text-anchor="middle">{world}</text>')
        for part in range(5):
            value = most * part / 4
            out.append(f'<line x1="{x0}" x2="{x0 + width}" y1="{down(value):.1f}" y2="{down(value):.1f}" stroke="#ddd"/>'
                       f'<text x="{x0 - 6}" y="{down(value) + 4:.1f}" text-anchor="end">{value / 1e3:.1f}k</text>')
        for colour, (plan, values) in zip(COLOURS, series.items()):
            points = " ".join(f"{across(i):.1f},{down(value):.1f}" for i, value in enumerate(values) if value)
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    for i, (colour, (plan, *_)) in enumerate(zip(COLOURS, PLANS)):
        x, y = left + 230 * (i % 4), top + height + 48 + 22 * (i // 4)
        out.append(f'<line x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/><text x="{x + 30}" y="{y}">{plan}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--program", default=str(ROOT / "bazel-bin/tools/cli/millrace_cpu"))
    args = parser.parse_args()
    page, figure = HERE / "HOSTS.md", HERE / "figures/hosts.svg"
    text, curves = tables(args.program)
    old = page.read_text()
    new, svg = old[:old.index(COMMENT)] + COMMENT + "\n" + text, picture(curves)
    if args.check:
        return 0 if (old, figure.read_text()) == (new, svg) else "HOSTS.md or figures/hosts.svg: hosts.py gives another one"
    page.write_text(new)
    figure.write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
