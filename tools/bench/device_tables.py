"""README.md's tables of one device: decode, the kernels of hybrids, and two programs in turn, from the JSON that a call kept. Standard library only."""
import json
import statistics
import results, step_gate


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def table(heads, lines):
    return ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1), *("| " + " | ".join(line) + " |" for line in lines)]


def spread(samples, form):
    return "{0} ({1}, {2})".format(*(form.format(value) for value in results.spread(samples)))


def decode(folder):
    """One file: cases in a row on one device, of one program."""
    data = load(folder / "decode_h200.json")
    lines = [[case["case"], str(row["batch"]), f"{1e3 * row['batch'] / results.quantile(row['step_ms_samples'], 0.5):,.0f}", spread(row["step_ms_samples"], "{:.3f}"),
              f"{results.quantile(row['prefill_ms_samples'], 0.5):.2f}"] for case in data["cases"] for row in case["decode"]]
    first = data["cases"][0]
    last = first["prompt_tokens"] + first["warmup"] + first["steps"]
    return [f"`{first['command']}` and the same of the other configurations, {data['device']}, commit {data['sources']}, {data['date']}: {first['steps']} steps",
            f"at contexts up to {last}. Medians in ms with 10th and 90th percentile; most of these is context, as a step at {last} reads more than the first. Prefill is of {first['prompt_tokens']}",
            "tokens, the median of its sequences; at batch 1 it is one sample, which has the first launches in it.", "",
            *table(["model", "batch", "tokens/s", "ms a step", "prefill, ms"], lines)]


def decode_in_turn(folder):
    """One file: cases on one device, each by the program before and right behind it by this one."""
    data = load(folder / "decode_in_turn.json")
    lines = []
    for case in data["cases"]:
        for row in case["decode"]:
            before, now = (results.quantile(row[key], 0.5) for key in ("before_ms_samples", "step_ms_samples"))
            lines.append([case["case"], str(row["batch"]), f"{1e3 * row['batch'] / before:,.0f}", f"{1e3 * row['batch'] / now:,.0f}", f"{before:.3f}",
                          spread(row["step_ms_samples"], "{:.3f}"), f"{before / now:.3f}"])
    return [f"`{data['command']}`, {data['device']}, {data['date']}: the steps above by the program before ({data['before']}), then by this one",
            f"({data['sources']}).", "",
            *table(["model", "batch", "before, tokens/s", "tokens/s", "before, ms", "ms a step", "before / ms"], lines)]


def exact(folder):
    """One file: steps and kernels of one device, without inference.exact and with it."""
    data = load(folder / "exact_h200.json")

    def line(what, fast, exact):
        return [what, spread(fast, "{:.3f}"), spread(exact, "{:.3f}"), f"{results.quantile(exact, 0.5) / results.quantile(fast, 0.5):.3f}"]

    lines = [line(f"{row['case']}, decode, batch {row['batch']}", row["fast_ms_samples"], row["exact_ms_samples"]) for row in data["decode"]]
    lines += [line(f"{row['case']}, a prompt of 504 tokens beside 63 others'", row["fast_prefill_ms_samples"], row["exact_prefill_ms_samples"])
              for row in data["decode"] if row["batch"] > 1]
    lines += [line(f"{row['case']}, training step", *([ms for steps in row[key] for ms in steps] for key in ("fast_ms_samples", "exact_ms_samples")))
              for row in data["train"]]
    kernels = [[row["what"], f"{row['us']:.1f}", f"{row['in_order_us']:.1f}", f"{row['in_order_us'] / row['us']:.2f}"] for row in data["kernels"]]
    return [f"`{data['command']}`: {data['device']}, {data['date']}, of {data['sources']}. Medians in ms with 10th and 90th percentile.", "",
            *table(["what", "fast, ms", "exact, ms", "exact / fast"], lines), "",
            *table(["kernel", "fast, us", "in order, us", "in order / fast"], kernels)]


def advice(folder):
    """A file for each model: the plans that were drawn for it, as advised and by one choice beside that, predicted and measured."""
    text = []
    for file, what in (("gpt2_124m", "GPT-2 124M, 64 sequences to a card"), ("llama_1b", "Llama 1B, 8 sequences to a card")):
        data = results.load(folder / f"advice_{file}_h100-x2.json")
        lines = []
        for row in data["rows"]:
            result = row["result"]
            now = result["planned_for_gpus_ms"]
            lines.append([result["what"], f"{result['predicted_ms']:.1f}", f"{now:.1f}", spread(result["step_ms_samples"], "{:.1f}"),
                          f"{100 * (now / results.quantile(result['step_ms_samples'], 0.5) - 1):+.1f}%"])
        text += [*[""] * bool(text), f"`{data['command']}`, {data['machine']}, commit {data['commit'][:7]}, {data['rows'][0]['date'][:10]}: {what}; ms.",
                 f"Planned for GPUs: {data['planned_for_gpus']}.", "", *table(["plan", "predicted then", "planned for GPUs", "measured", "off"], lines)]
    return text


def documents(folder):
    """One file: steps without a document mask and with it, in turn."""
    data = load(folder / "documents_h100.json")
    lines = []
    for name, case in data["cases"].items():
        without, masked = ([ms for round_ in case[key] for ms in round_] for key in ("without_ms_samples", "with_ms_samples"))
        lines.append([f"{name}, B {case['batch']}, T {case['tokens']}", f"{case['share']:.2f}", spread(without, "{:.1f}"), spread(masked, "{:.1f}"),
                      f"{results.quantile(masked, 0.5) / results.quantile(without, 0.5):.3f}"])
    return [f"`python3 tools/bench/documents_gpu.py OUT`, one {data['device']}, {data['sources']}, {data['date']}; medians in ms with 10th and 90th percentile.", "",
            *table(["case", "share of attention left", "without, ms", "with, ms", "with / without"], lines)]


def prefill(folder):
    """One file: a prompt by the program before and by this one in turn, the forward of as many tokens, and steps of decode by both in turn."""
    data = load(folder / "prefill_h100.json")
    lines = []
    for row in data["prompts"]:
        before, now = (results.quantile(row[key], 0.5) for key in ("before_ms_samples", "ms_samples"))
        cells = ["not reached", ""]
        if row["forward_ms_samples"]:
            forward = results.quantile(row["forward_ms_samples"], 0.5)
            cells = [f"{forward:.2f}", f"{forward / row['forward_tokens'] / (now / row['tokens']):.2f}"]
        lines.append([row["model"], f"{row['tokens']:,}", f"{before:.2f}", spread(row["ms_samples"], "{:.2f}"), f"{before / now:.2f}", *cells])
    steps = []
    for row in data["decode"]:
        before, now = (results.quantile(row[key], 0.5) for key in ("before_ms_samples", "ms_samples"))
        steps.append([row["model"], str(row["batch"]), f"{before:.3f}", spread(row["ms_samples"], "{:.3f}"), f"{before / now:.3f}", f"{1e3 * row['batch'] / now:,.0f}"])
    return [f"`{data['command']}` in turn, {data['device']}, {data['date']}; before is {data['before']}, ours {data['sources']}. A prompt alone, its first launches not",
            "counted: medians in ms with 10th and 90th percentile. The forward is an evaluation's, of one sequence of as many tokens; its rate is in tokens.", "",
            *table(["prompt", "tokens", "before, ms", "ms", "before / ms", "forward, ms", "of its rate"], lines), "",
            "Steps of decode as above, by both in turn:", "", *table(["decode", "batch", "before, ms", "ms a step", "before / ms", "tokens/s"], steps)]


def era_line(case):
    """Of era_gpu.py: the first step of a turn counts by itself."""
    later = {name: [ms for part in case[name] for ms in part[1:]] for name in ("none", "era")}
    first = {name: statistics.median(part[0] for part in case[name]) for name in later}
    ratios = sorted(statistics.median(b[1:]) / statistics.median(a[1:]) for a, b in zip(case["none"], case["era"]))
    ratio = statistics.median(later["era"]) / statistics.median(later["none"])
    return [f"{case['case']}, B {case['rows']}", spread(later["none"], "{:.3f}"), spread(later["era"], "{:.3f}"),
            f"{ratio:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", f"{first['none']:.2f}, {first['era']:.2f}",
            f"{1e3 * statistics.median(case['export_s']):.1f} ms of {case['export_bytes'] / 1e9:.2f} GB"]


ERA_HEADS = ["steps of", "no era, ms", "an era, ms", "ratio (of rounds)", "first steps, ms", "export"]


def era(folder):
    data = load(folder / "era_h200.json")
    arena = data["cases"][0]["arena_bytes"]
    return [f"`{data['command']}`, {data['device']}, commit {data['sources']}, {data['date']}: {len(data['cases'][0]['none'])} rounds of {data['cases'][0]['steps']} steps of each,",
            "in turn in one process; the run with an era answers 64 requests ahead of its steps in each round. Medians with 10th and 90th percentile; the first step of a round, behind",
            f"answers or behind the other run's, is apart. The arena is {arena['era'] - arena['none']:,} bytes larger. Exports are of all weights in float32, for another process on the",
            "card.", "",
            *table(ERA_HEADS, [era_line(case) for case in data["cases"]])]


GRPO_PARTS = ("sample_s", "score_s", "train_s", "step_s")
GRPO_SIDES = {"millrace": "Millrace", "millrace_lean": "Millrace with less memory", "torch": "transformers", "trl": "TRL", "trl_tuned": "TRL, tuned"}


def grpo_ratios(rows):
    """Of the first update by each rollout; none where a side does not tell it."""
    return [row["policy"][0]["ratio"] if "policy" in row else row["ratios"][0] for row in rows if "policy" in row or "ratios" in row]


def grpo_call(call):
    """Each side of each case, then each of ours beside each peer."""
    lines = []
    for case in call["cases"]:
        counted = {name: [row for row in side["rows"] if row["step"] > 0] for name, side in case["sides"].items()}
        median = {name: [results.quantile([row[part] for row in rows], 0.5) for part in GRPO_PARTS] for name, rows in counted.items()}
        for name, rows in counted.items():
            memory = case["sides"][name]["start"].get("arena_bytes") or max(row["allocated_bytes"] for row in rows)
            firsts = grpo_ratios(rows)
            ratio = "" if not firsts else f"{firsts[0]:.6g}" if min(firsts) == max(firsts) else f"{min(firsts):.6g} to {max(firsts):.6g}"
            parts = [spread([1e3 * row[part] for row in rows], "{:,.0f}") if time else "" for part, time in zip(GRPO_PARTS, median[name])]
            lines.append([f"{case['case']}, {GRPO_SIDES[name]}", *parts, f"{memory / 2**30:.1f}", ratio, str(len(rows))])
        peers = [name for name in counted if not name.startswith("millrace")]
        for own in counted:
            if own not in peers:
                lines += [[f"{case['case']}, {GRPO_SIDES[own]}: times as fast as {GRPO_SIDES[peer]}",
                           *(f"{theirs / ours:.2f}" if theirs else "" for theirs, ours in zip(median[peer], median[own])), "", "", ""] for peer in peers]
    return [f"`{call['command']}`, {call['device']}, of {call['sources']}, {call['date']}: {call['what']}", "",
            *table(["", "sample, ms", "score, ms", "train, ms", "step, ms", "GiB", "ratio of the update", "steps"], lines), ""]


def grpo(folder):
    """Steps of GRPO by several sides in turn; and how rewards go, on a GPU and on the CPU."""
    data = load(folder / "grpo_h200.json")
    curves = []
    for name, run in data["sort"].items():
        tenths = [statistics.fmean(run["rewards"][at:at + 10]) for at in range(0, 80, 10)]
        curves.append([name, *(f"{mean:.3f}" for mean in tenths), f"{run['start']:.3f} to {run['end']:.3f}", f"{max(run['off']):.0e}"])
    return [*(line for call in data["calls"] for line in grpo_call(call)),
            f"`{data['sort_command']}` on {data['sort_device']}, {data['sort_sources']}: means of rewards by ten rollouts, and the accuracy on held-out problems.", "",
            *table(["device", *(f"to {to}" for to in range(10, 81, 10)), "accuracy", "off the loss at ratio 1"], curves)]


PRODUCTS = {"forward": "forward_tflops", "input gradient": "input_gradient_tflops", "weight gradient, bf16": "weight_gradient_tflops"}


def times(first, second):
    """"0.96 to 1.07": how many times as long `second` took, from the least to the most."""
    parts = sorted(b / a for a, b in zip(first, second))
    return f"{parts[0]:.2f} to {parts[-1]:.2f}"


def hybrids(folder):
    """The call that has the peer's products, and how far another call on another card was from it."""
    data = load(folder / "hybrids_h200.json")
    call, other = data["calls"]
    ours = {(row["experts"], row["load"], row["product"]): row["tflops"] for row in call["grouped"]}
    lines = []
    for peer in call["torch"]:
        line = [f"{peer['experts']}, {peer['load']}"]
        for product, key in PRODUCTS.items():
            rate = ours[(peer["experts"], peer["load"], product)]
            line += [f"{rate:.0f}", f"{peer[key]:.0f}", f"{rate / peer[key]:.2f}"]
        lines.append(line + [f"{ours[(peer['experts'], peer['load'], 'weight gradient, f32')]:.0f}"])
    text = [f"`{call_command(data, 'grouped_bench')}` and `{call_command(data, 'torch_grouped')}`, {data['device']}, of \"{call['sources']}\", {data['date']}.",
            f"Medians, TFLOP/s; bf16, 49152 rows, 2688 -> 1856; {data['peer']}. Zipf: expert e has a share of the rows in proportion to 1 / (e + 1).", "",
            *table(["experts, load", "forward", "torch", "ratio", "input gradient", "torch", "ratio", "weight gradient", "torch", "ratio", "the same into f32"], lines), ""]
    ops = {}
    for row in call["ssd"]:
        ops.setdefault(row["op"], {})[row["size"]] = f"{row['ms']:.3f} ({row['least_ms']:.3f}, {row['most_ms']:.3f})"
    sizes = list(dict.fromkeys(row["size"] for row in call["ssd"]))
    products, scans, rest = ([[row["ms"] for row in each[key] if key == "grouped" or row["op"].startswith("scan") == scan] for each in (call, other)]
                             for key, scan in (("grouped", False), ("ssd", True), ("ssd", False)))
    text += [f"`{call_command(data, 'ssd_bench')}` in the same call: median ms with the least and the most, state 128, heads (H) of 64, 8 groups.", "",
             *table(["op of a Mamba-2 mixer", *sizes], [[op, *(row[size] for size in sizes)] for op, row in ops.items()]), "",
             f"Another call on another card, of \"{other['sources']}\", took {times(*products)} times as long for products, {times(*scans)} for scans, {times(*rest)} for the rest."]
    return text


def call_command(data, word):
    return next(command for command in data["commands"] if word in command)


def gate(folder):
    data = load(folder / "step_gate_h200-x2.json")
    lines = [step_gate.row(case, samples)[0] for case, samples in data["cases"].items()]
    return [f"{data['device']}, {data['old']} beside {data['new']}, {data['date']}. Medians in ms with the 10th and 90th percentile of three rounds' steps:", "",
            *table(["case", "old, ms", "new, ms", "new / old", "by round"], []), *lines]


TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def sanitizers(folder):
    """Reports about our kernels by program and tool; of a tool that did not come to its end there is no count."""
    data = load(folder / "sanitizers_h200.json")
    rows = {(row["program"], row["tool"]): row for row in data["rows"]}
    cell = lambda row: "" if row is None else "no end in {} s".format(row["seconds"]) if row["verdict"] == "time" else str(sum(row["ours"].values()))
    programs = [name for name in dict.fromkeys(row["program"] for row in data["rows"]) if name != "planted_faults"]
    other = {}
    for row in data["rows"]:
        if row["sources"] != data["sources"]:
            other.setdefault(row["sources"], []).append(f"{row['tool']}.{row['program']}")
    return [f"`{data['command']}`, compute-sanitizer of CUDA 13.0, {data['device']}, commit {data['sources']}, {data['date']}: reports about our kernels. All four tools found the",
            " ".join(["planted faults."] + [f"Of {sources}: {', '.join(names)}." for sources, names in other.items()]), "",
            *table(["program", *TOOLS], [[name, *(cell(rows.get((name, tool))) for tool in TOOLS)] for name in programs])]


# Of ops that form or write what is quantized: an activation has ops of its own where it is formed again while it is quantized.
FP8_OPS = {"products": ("matmul",), "quantising": ("quantize",), "norms, activations, biases": ("norm", "norm_grad", "norm_sums", "activation", "activation_grad", "column_sum")}


def fp8(folder):
    """Steps of one call, and what some of their ops take."""
    data = load(folder / "fp8_h100.json")
    lines = []
    call = data["same_call"]
    for program, source in (("now", data), (call["sources"], call), ("before", data["before"])):
        for case, encodings in source["steps"].items():
            base = statistics.median(encodings["compute"])
            for name, times in encodings.items():
                middle, low, high = statistics.median(times), min(times), max(times)
                ops = source.get("ops", {}).get(f"{case} {name}", {})
                of = [sum(ops.get(op, 0) for op in kinds) for kinds in FP8_OPS.values()]
                lines.append([program, case, name, f"{middle:.2f} ({low:.2f}, {high:.2f})", f"{middle / base:.3f}", *(f"{ms:.1f}" if ms else "" for ms in of)])
    return [f"`{data['command']}`, {data['device']}, {data['sources']}, {data['date']}: ms of a step, the median (least, most) of the medians of two to four rounds, taken in turn;",
            f"ms of some ops, each alone. A GELU and its gradient belong to the product before them where they are its op's. {call['sources']}: in the same call. Before: {data['before']['sources']}, on {data['before']['device']}.", "",
            *table(["program", "case", "precision.linear", "step, ms", "x compute", *(f"{kind}, ms" for kind in FP8_OPS)], lines)]


def rows(folder):
    """Kernels that move bytes, of rows_bench: those below 85 % of a copy's rate and those that were so, the others as a range. A share says something from 64 MiB on."""
    data = load(folder / "rows_h100.json")
    large = [row for row in data["rows"] if row["us"] * row["gb_per_s"] * 1e3 >= 64 << 20]
    before = {(row["op"], row["sizes"]): row["us"] for row in data["before"]["rows"]}
    shown = [row for row in large if row["low"] or row["op"].startswith(("norm", "cross_entropy"))]
    shares = sorted(row["of_copy"] for row in large if row not in shown)
    was = lambda row: f"{before[row['op'], row['sizes']]:.1f}" if (row["op"], row["sizes"]) in before else ""
    lines = [[row["op"], row["sizes"], f"{row['us']:.1f}", was(row), f"{row['gb_per_s']:.0f}", f"{row['of_copy']}%" + (" LOW" if row["low"] else "")] for row in shown]
    low = sum(row["low"] for row in large)
    return [f"`{data['command']}`, {data['device']}, of {data['sources']}, {data['date']}: of {len(large)} rows that move 64 MiB or more {len(large) - low} reach 85 % of what a copy of",
            f"1 GiB moves ({data['copy_gb_per_s']:.0f} GB/s, read plus written); the others are marked LOW. The {len(shares)} rows that are not here have {shares[0]} to {shares[-1]} %.",
            f"\"was\": {data['before']['sources']} in the same call.", "", *table(["op", "sizes", "us", "was", "GB/s", "of copy"], lines)]


def bitwise(folder):
    """What the tables of 2026-11-21 (HISTORY.md) lack: two cards, hybrids, options that came later."""
    text = []
    for data in [*load(folder / "bitwise_h200-x2.json"), load(folder / "bitwise_h100.json")]:
        lines = [[row["option"], row["verdict"], f"{row['last_loss']:.6f}", row["plan"]] for row in data["rows"]]
        text += ["", f"`{data['command']}`, {data['device']}, commit {data['sources']}, {data['date']}:", "",
                 *table(["option", "losses, norms, hashes", "last loss", "plan"], lines)]
    return text[1:]


def last_apart(run, base):
    """How far the last losses of `run` are from `base`'s at the same steps: a peer whose time was up has fewer."""
    if run["steps"] == base["steps"]:
        return run["last_mean"] - base["last_mean"]
    whole = min(run["steps"], base["steps"]) // 50
    return statistics.mean(a - b for a, b in zip(run["means"][whole - 4:whole], base["means"][whole - 4:whole]))


def long_runs(folder):
    """Losses of FP8 and of a peer beside ours in bf16 from the same seeds, pair by pair, and the deviation between our seeds."""
    files = [results.load(path) for card in ("h100", "h200") for path in sorted(folder.glob(f"long_runs_{card}*.json"))]
    data, kept, commits = files[0], {}, {}
    for file in files:
        for row in file["rows"]:
            if "result" in row:
                kept.setdefault((row["group"], row["variant"], row["round"]), row["result"])
                card, first = (each["machine"].split(",")[0].split()[3] for each in (file, data))
                program = file["commit"][:7] + (f" on an {card}" if card != first else "")
                commits.setdefault((row["group"], row["variant"]), {})[program] = row["date"][:10]
    models = list(dict.fromkeys(model for model, *_ in kept))
    found = {key: kept[key] for key in sorted(kept, key=lambda key: models.index(key[0]))}
    lines = []
    for model, variant in dict.fromkeys((group, variant) for group, variant, _ in found):
        of = {seed: result for (group, name, seed), result in found.items() if (group, name) == (model, variant)}
        base = {seed: result.get("ours") or found.get((model, "compute", seed)) for seed, result in of.items()}
        steps = next(iter(of.values()))["steps"]
        last = {seed: result["last_mean"] for seed, result in sorted(of.items())}
        apart = [last_apart(of[seed], base[seed]) for seed in last if base[seed]]
        held = [result["held_out"] - base[seed]["held_out"] for seed, result in sorted(of.items()) if base[seed] and "held_out" in result]
        begun_alike = any("ours" in result for result in of.values())
        ours = [result["last_mean"] for (group, name, _), result in found.items() if (group, name) == (model, "compute")]
        spread_of = statistics.stdev(ours) if len(ours) > 1 else None
        signed = lambda values: ", ".join(f"{value:+.4f}" for value in values)
        cells = ["", "", f"{spread_of:.4f} between seeds" if spread_of else "", ""]
        if variant != "compute" and apart:
            mean = statistics.mean(apart)
            within = f"{abs(mean) / spread_of:.2f}" if spread_of else "one seed"
            cells = [signed(apart), f"{mean:+.4f}", within, signed(held)]
        told = variant + "".join(f", of {commit}" for commit in commits[model, variant] if commit != data["commit"])
        values = [f"{seed}: {value:.4f}" + (f" ({base[seed]['last_mean']:.4f} ours)" if begun_alike else "") for seed, value in last.items()]
        lines.append([f"{model}, {steps:,} steps", told, ", ".join(values), *cells])
    text = data["text"]
    return [f"`{data['command']}`, {data['machine']}, commit {data['commit']}, {data['rows'][0]['date'][:10]}: mean losses of the last {next(iter(found.values()))['last']} steps by seed. Text: {text['what']},",
            f"{text['bytes']:,} bytes (SHA-256 {text['sha256'][:16]}), the last tenth held out. Beside bf16: each seed's difference from the linears that compute in bf16; of torch from ours,",
            "which begins from torch's weights in that row and has the same batches.", "",
            *table(["model", "linears", "last losses", "beside bf16", "mean", "of the seeds' deviation", "held out, beside bf16"], lines)]
