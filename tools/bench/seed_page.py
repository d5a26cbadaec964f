"""SEEDS.md from the JSON that seeds.py wrote: the published figure beside ours. Standard library only."""
import os, pathlib
import results, seed_groups

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE / "SEEDS.md"
MIB, GIB = 2**20, 2**30

HEAD = """# The five systems' comparisons, on Millrace

Made by `python3 -B tools/bench/seeds.py --page` from the JSON in [results](results); a test compares. Each section is one system that Millrace goes back to: what it published, and
the same comparison run here. The first row of a table is how that system did it before. Times are medians with the 10th and 90th percentile of all rounds, whose rows were run in
turn. "within spread": the two intervals touch, so nothing is claimed. MiB and counts are per step and rank. Classes are the most bytes of a class that live at one time, by the plan; `slots` holds
gathered weights and the buckets of gradients. "bits": losses, gradient norms and hashes of weights and moments of all steps, compared with the first row's.
"""


def pooled(rows, key):
    return [value for row in rows for value in row["result"].get(key, [])]


def interval(samples, form="{:.2f}"):
    return "{} ({}, {})".format(*(form.format(v) for v in results.spread(samples)))


def per_step(bench_key, train_key):
    """A count of the bench's, or of a run's counters; a peer counts nothing."""
    def cell(rows, _):
        result = rows[0]["result"]
        value = result.get(bench_key, result.get("counters_per_step", {}).get(train_key))
        return "" if value is None else f"{value / MIB:.2f}"
    return cell


def count(key):
    return lambda rows, _: f"{rows[0]['result']['counters_per_step'][key]:g}"


def most(key, unit, form):
    return lambda rows, _: form.format(max(row["result"][key] for row in rows) / unit)


def planned(path, unit, form):
    def cell(rows, _):
        value = rows[0]["result"]["plan"]
        for key in path.split("."):
            value = value[key]
        return form.format(value / unit)
    return cell


def sum_of_kinds(*kinds):
    """Of the traces of all rounds: the median of the microseconds that ops of these kinds took in a step."""
    def cell(rows, _):
        sums = [sum(row["result"]["trace_us"].get(kind, 0) for kind in kinds) for row in rows]
        return f"{results.quantile(sums, 0.5):.0f}"
    return cell


def pool(key):
    """Of an allocator's own figures, or of the bound."""
    def cell(rows, _):
        result = rows[0]["result"]
        of = result["lower_bound"] if key == "lower_bound" else result["allocators"][key]
        return f"{of['parameter_pool_bytes'] / GIB:.3f}"
    return cell


def as_planned(rows, _):
    return "yes" if all(row["result"]["arena_bytes"] == row["result"]["plan"]["run_arena_bytes"] for row in rows) else "**no**"


def same_bits(rows, base):
    if rows is base:
        return "first"
    return "the same" if rows[0]["result"]["bits"] == base[0]["result"]["bits"] else "**differ**"


# name: (heading, rows of one variant and of the baseline -> text)
COLUMNS = {
    "step": ("step ms (p10, p90)", lambda rows, _: interval(pooled(rows, "step_ms_samples"))),
    "verdict": ("beside the first", lambda rows, base: "" if rows is base else results.verdict(pooled(rows, "step_ms_samples"), pooled(base, "step_ms_samples"))),
    "host": ("host us (p10, p90)", lambda rows, _: interval(pooled(rows, "host_us_samples"), "{:.0f}")),
    "nodes": ("graph nodes", lambda rows, _: str(rows[0]["result"]["graph_nodes"])),
    "gathered": ("gathered MiB", per_step("gathered_bytes_per_step", "bytes_gathered")),
    "reduced": ("reduced MiB", per_step("reduced_bytes_per_step", "bytes_reduced")),
    "cast": ("cast MiB", per_step("cast_bytes_per_step", "bytes_cast")),
    "concatenated": ("concatenated MiB", per_step("concatenated_bytes_per_step", "bytes_concatenated")),
    "gathers": ("gathers", count("gathers")),
    "reduces": ("reduces", count("reduces")),
    "launches": ("launches", count("graph_launches")),
    "arena": ("arena GiB", most("arena_bytes", GIB, "{:.3f}")),
    "arena_mib": ("arena MiB", most("arena_bytes", MIB, "{:.3f}")),
    "device": ("device GiB", most("peak_bytes", GIB, "{:.2f}")),
    "collectives": ("collectives us", sum_of_kinds("all_gather", "reduce_scatter", "all_reduce")),
    "update_in_step": ("norm, clip, update in the step, us", sum_of_kinds("sum_squares", "step_stats", "adamw")),
    "bits": ("bits", same_bits),
    "as_planned": ("as planned", as_planned),
    "packed_arena": ("arena, packed", lambda rows, _: f"{rows[0]['result']['allocators']['packed']['arena_bytes'] / GIB:.3f}"),
    "arena_bound": ("its bound", lambda rows, _: f"{rows[0]['result']['lower_bound']['arena_bytes'] / GIB:.3f}"),
}
for name in ("parameters", "slots", "gradients", "activations"):
    COLUMNS["class_" + name] = (name + " GiB", planned("bytes_per_rank." + name, GIB, "{:.3f}"))
    COLUMNS[f"class_{name}_mib"] = (name + " MiB", planned("bytes_per_rank." + name, MIB, "{:.3f}"))
for name in ("parameter", "gradient"):
    COLUMNS[name + "_pool"] = (name + " pool MiB", planned(name + "_pool_bytes", MIB, "{:.1f}"))
    COLUMNS[name + "_pool_mib"] = (name + " pool MiB", planned(name + "_pool_bytes", MIB, "{:.3f}"))
for name in ("dynamic", "persistent", "fixed", "max_pool", "coloured", "packed", "lower_bound"):
    COLUMNS["pool_" + name] = (name.replace("_", " "), pool(name))


def table(heads, lines):
    return ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1), *("| " + " | ".join(line) + " |" for line in lines), ""]


def updates(rows):
    """The ways of issuing an update, from `bench --update`: all rounds together."""
    lines, base = [], None
    for name in dict.fromkeys(u["name"] for row in rows for u in row["result"]["updates"]):
        same = [u for row in rows for u in row["result"]["updates"] if u["name"] == name]
        us, host = ([value for u in same for value in u[key]] for key in ("us_samples", "host_us_samples"))
        base = base or us
        lines.append([name, str(same[0]["kernels"]), str(same[0]["launches"]), interval(us, "{:.1f}"), interval(host, "{:.1f}"),
                      "" if us is base else results.verdict(us, base)])
    return table(["issued", "kernels", "launches", "us (p10, p90)", "host us (p10, p90)", "beside the first"], lines)


def update_kernels(rows):
    return table(["issued", "kernels"], [[u["name"], str(u["kernels"])] for u in rows[0]["result"]["updates"]])


def profile(fine):
    """Where a step's time goes, kind by kind, in the variants beside each other: the most first. All streams together, so a sum may be more than the step."""
    kinds = {v: {k: results.quantile([row["result"]["trace_us"].get(k, 0) for row in rows], 0.5) for row in rows for k in row["result"]["trace_us"]}
             for v, rows in fine.items()}
    most = {k: max(of.get(k, 0) for of in kinds.values()) for of in kinds.values() for k in of}
    lines = [[k, *(f"{of[k]:.0f}" if k in of else "" for of in kinds.values())] for k in sorted(most, key=most.get, reverse=True)]
    lines += [["all", *(f"{sum(of.values()):.0f}" for of in kinds.values())],
              ["the step, ms (p10, p90)", *(interval(pooled(rows, "step_ms_samples")) for rows in fine.values())]]
    return table(["op", *fine], lines)


def group_text(group, rows):
    """Of one comparison: its table, and what has no figure."""
    fine = {v: [r for r in rows if r["variant"] == v and "result" in r] for v in [*group.variants, *group.peers]}
    fine = {v: found for v, found in fine.items() if found}
    text = [f"**{group.name}.** {group.title}", ""]
    if group.common:
        text = [f"**{group.name}.** {group.title} `{group.config if isinstance(group.config, str) else 'a small model'}` with `{' '.join(group.common)}`.", ""]
    if fine and group.columns[0].startswith("update"):
        text += (updates if group.columns == ["updates"] else update_kernels)(next(iter(fine.values())))
    elif fine and group.columns == ["profile"]:
        text += profile(fine)
    elif fine:
        base = next(iter(fine.values()))
        heads, cells = zip(*(COLUMNS[name] for name in group.columns))
        text += table(["variant", *heads], [[variant, *(cell(found, base) for cell in cells)] for variant, found in fine.items()])
    missing = [(row["variant"], row["error"]) for row in rows if "error" in row]
    text += [f"- {variant}: {error.replace('|', '/')}" for variant, error in dict(missing).items()]
    how = f"`seeds.py --ranks {group.ranks}`" if group.ranks > 1 else "the command above"
    text += [f"- {variant}: not measured; {how} measures it" for variant in [*group.variants, *group.peers] if not any(r["variant"] == variant for r in rows)]
    return text + ([""] if text[-1] else [])


def rows_of(data, group):
    return [row for row in data["rows"] if row["group"] == group.name]


def section(data, groups, seed):
    text = []
    for group in groups:
        if group.seed == seed:
            text += group_text(group, rows_of(data, group))
    return text


def whole_first(devices, groups):
    """For each file those of the groups whose table is made from it: the file with most results of the group, then one that is not about groups for a
    number of ranks alone, then the newest. A table is of one commit."""
    own = {group.name for group in groups if group.ranks}

    def worth(name, group):
        rows = devices[name]["rows"]
        found = [row for row in rows_of(devices[name], group) if "result" in row]
        return len(found), any(row["group"] not in own for row in rows), max((row["date"] for row in rows), default="")
    best = {group.name: max(devices, key=lambda name: worth(name, group)) for group in groups}
    return {name: [group for group in groups if best[group.name] == name] for name in devices}


def markdown(cpu, devices):
    """`cpu`: the file's content or None; `devices`: {name: content}."""
    text = [HEAD]
    sets = [("The CPU", cpu, seed_groups.on_cpu())] if cpu else []
    if devices:
        sets += [(name, devices[name], groups) for name, groups in sorted(whole_first(devices, seed_groups.on_devices()).items())]
    for name, data, _ in sets:
        dates = sorted(row["date"][:10] for row in data["rows"])
        text += [f"- {name}: `{data['command']}`, {data['machine']}, commit {data['commit']}" + (f", {dates[0]} to {dates[-1]}." if dates else ".")]
    if not devices:
        text += ["- Two GPUs: not measured at this commit. `tools/bench/device.sh` measures it; HISTORY.md has what was measured earlier."]
    for seed, title in seed_groups.SEEDS.items():
        text += ["", f"## {title}", "", seed_groups.PUBLISHED[seed], ""]
        for name, data, groups in sets:
            lines = section(data, groups, seed)
            text += [f"### {name}", "", *lines] if lines else []
    return "\n".join(text).rstrip() + "\n"


def made(folder=results.FOLDER):
    """The page that the JSON in `folder` gives."""
    cpu = folder / "seeds_cpu.json"
    devices = {path.stem[len("seeds_"):]: results.load(path) for path in sorted(folder.glob("seeds_*.json")) if path != cpu}
    return markdown(results.load(cpu) if cpu.exists() else None, devices)


def write(folder=results.FOLDER, page=PAGE):
    part = page.with_name(page.name + ".part")
    part.write_text(made(folder), encoding="utf-8")
    os.replace(part, page)
