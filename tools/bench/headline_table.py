"""What headline.py found, as table.md, table.json and bars.svg. Standard library only."""
import html, json, os, platform

ALONE = "millrace on 1 GPU"
BLUE, LIGHT, RED, GREY = "#1f4e8c", "#7fa3cf", "#c8553d", "#b5aea9"
HEAD = ["variant", "tokens/s per GPU", "step ms", "p10", "p90", "MFU causal", "MFU full", "arena or allocated GiB", "reserved GiB", "device GiB",
        "host us", "SM MHz", "x best peer", "x floor", "exposed ms", "rounds"]


def quantile(values, q):
    """Nearest rank, as `millrace bench` takes it."""
    return sorted(values)[int(q * (len(values) - 1) + 0.5)]


def is_ours(variant):
    return variant.startswith("millrace")


def rows_of(case, floor_ms):
    """A dictionary per variant and attention back-end, in the order of first appearance; rounds taken together."""
    rows, plan, shape = [], case.plan, case.shape
    for key in dict.fromkeys((r["variant"], r["sdpa"]) for r in case.runs):
        here = [r for r in case.runs if (r["variant"], r["sdpa"]) == key]
        fine, bad = [r for r in here if r["ok"]], [r for r in here if not r["ok"]]
        row = dict(variant=key[0], sdpa=key[1], ok=bool(fine), rounds=len(fine), error=bad[0]["error"] if bad else None)
        rows.append(row)
        if not fine:
            continue
        steps = [t for r in fine for t in r["step_ms"]]
        median = quantile(steps, 0.5)
        rate = shape["tokens_per_step_per_rank"] / (median / 1e3)
        per_token, peak = plan["flops"]["per_token"], plan["time"]["peak_flops_per_s"]
        row.update(step_ms=median, step_ms_p10=quantile(steps, 0.1), step_ms_p90=quantile(steps, 0.9), tokens_per_s_per_gpu=rate,
                   mfu_causal=rate * per_token["causal"] / peak, mfu_full=rate * per_token["full"] / peak,
                   host_us=middle(fine, "host_us"), sm_mhz=middle(fine, "sm_mhz"), watts=middle(fine, "watts"),
                   working_bytes=most(fine, "working_bytes"), reserved_bytes=most(fine, "reserved_bytes"), device_bytes=most(fine, "device_bytes"), ratio_to_best_peer=None, exposed_ms=None,
                   ratio_to_floor=None if key[0] == ALONE or not floor_ms else median / floor_ms)
    peers = [r for r in rows if r["ok"] and not is_ours(r["variant"])]
    best = min(peers, key=lambda r: r["step_ms"], default=None)
    alone = next((r for r in rows if r["ok"] and r["variant"] == ALONE), None)
    for row in rows:
        row["is_best_peer"] = row is best
        if row["ok"] and row["variant"] != ALONE and best:
            row["ratio_to_best_peer"] = best["step_ms"] / row["step_ms"]
        if row["ok"] and row["variant"] == "millrace" and alone:
            row["exposed_ms"] = row["step_ms"] - alone["step_ms"]
    return rows


def most(runs, key):
    return max((r[key] for r in runs if r[key] is not None), default=None)


def middle(runs, key):
    values = [r[key] for r in runs if r[key] is not None]
    return quantile(values, 0.5) if values else None


def label(row):
    return row["variant"] + (f", {row['sdpa']}" if row["sdpa"] else "")


def number(value, form, scale=1.0):
    return "" if value is None else format(value * scale, form)


def markdown_row(row):
    if not row["ok"]:
        return [label(row), f"**no result**: {row['error'].replace('|', '/')}"] + [""] * (len(HEAD) - 2)
    gib = 1 / 2**30
    name = f"**{label(row)}**" if is_ours(row["variant"]) else label(row)
    return [name, number(row["tokens_per_s_per_gpu"], ",.0f"), number(row["step_ms"], ".2f"), number(row["step_ms_p10"], ".2f"),
            number(row["step_ms_p90"], ".2f"), number(row["mfu_causal"], ".1%"), number(row["mfu_full"], ".1%"), number(row["working_bytes"], ".2f", gib),
            number(row["reserved_bytes"], ".2f", gib), number(row["device_bytes"], ".2f", gib), number(row["host_us"], ".0f"), number(row["sm_mhz"], ".0f"),
            number(row["ratio_to_best_peer"], ".3f"), number(row["ratio_to_floor"], ".2f"), number(row["exposed_ms"], ".2f"), str(row["rounds"])]


def title_of(case, ranks):
    s = case.shape
    return f"{case.name}: {s['family']}, {s['layers']} x {s['d_model']}, T {s['seq_len']}, B {s['micro_batch']}, {ranks} GPU{'s' * (ranks > 1)}"


def versions(case):
    """What the peers say they are, from their results."""
    told = [r["raw"] for r in case.runs if r["ok"] and r["raw"] and "torch" in r["raw"]]
    return f"PyTorch {told[0]['torch']}, cuDNN {told[0]['cudnn']}" if told else "no PyTorch"


def markdown_case(case, rows, host, floor):
    floor_ms, floor_from = floor
    plan, out = case.plan, [f"\n## {title_of(case, host['ranks'])}\n"]
    per_token, device = plan["flops"]["per_token"], plan["memory"].get("device_bytes")
    in_use = f", device {device / 2**30:.2f} GiB" if device else ""
    out.append(f"{case.shape['parameters']:,} parameters, {per_token['causal'] / 1e9:.3f} GFLOP per token causal, {per_token['full'] / 1e9:.3f} full; peak "
               f"{plan['time']['peak_flops_per_s'] / 1e12:.1f} TFLOP/s. Floor {floor_ms:.2f} ms ({floor_from}); predicted step "
               f"{1e3 * plan['time']['step_s']:.2f} ms, arena {plan['memory']['run_arena_bytes'] / 2**30:.2f} GiB{in_use}. Peers: {versions(case)}.\n")
    out += ["| " + " | ".join(HEAD) + " |", "|---|" + "--:|" * (len(HEAD) - 1)]
    out += ["| " + " | ".join(markdown_row(row)) + " |" for row in rows]
    partly = [f"{label(r)}: only {r['rounds']} of its rounds, then {r['error']}" for r in rows if r["ok"] and r["error"]]
    best = next((label(r) for r in rows if r["is_best_peer"]), None)
    notes = [f"Best peer: {best}." if best else "No peer has a result.", *partly]
    if case.all_left_out():
        notes.append("Left out: " + "; ".join(case.all_left_out()) + ".")
    return out + ["", " ".join(notes)]


LEGEND = """
Steps of all rounds together; medians, 10th and 90th percentile. x best peer: its step over this one, higher is better. x floor: this step over the floor.
Memory like with like: our arena and PyTorch's allocated; what PyTorch reserved and what the device has in use, context and libraries included, for both.
host us: time to issue a step. SM MHz: median clock while busy. exposed: our step here less our step of the same configuration on one GPU in the
same rounds (its own row): what communication adds, less what sharding the optimizer saves. NVLink multicast is off for all."""


def markdown(host, tables, failures):
    out = [f"# Millrace beside its peers\n\n`{host['command']}`, {host['host']}, {host['date']}: rounds: {host['rounds']}, of {host['steps']} steps after "
           f"{host['warmup']} more.", LEGEND]
    for case, rows, floor in tables:
        out += markdown_case(case, rows, host, floor)
    if failures:
        out.append("\nNot run: " + "; ".join(failures))
    return "\n".join(out) + "\n"


def svg(host, tables):
    """Tokens per second and GPU as bars, a group per case, each group to its own scale; whiskers from p10 to p90."""
    width, left, right, line = 960, 250, 190, 24
    body, y = [], 60

    def text(x, at, said, more=""):
        body.append(f'<text x="{x:.1f}" y="{at:.1f}" {more}>{html.escape(said)}</text>')

    for case, rows, _ in tables:
        text(20, y + 14, title_of(case, host["ranks"]), 'font-weight="bold" font-size="14"')
        y += 28
        tokens = case.shape["tokens_per_step_per_rank"]
        limit = max((tokens * 1e3 / r["step_ms_p10"] for r in rows if r["ok"]), default=1)
        for row in rows:
            text(left - 8, y + 15, label(row), 'text-anchor="end"')
            if not row["ok"]:
                text(left + 6, y + 15, "no result: " + row["error"][:90], 'fill="#777"')
                y += line
                continue
            colour = {"millrace": BLUE}.get(row["variant"], LIGHT if is_ours(row["variant"]) else RED if row["is_best_peer"] else GREY)
            bar, low, high = (left + (width - left - right) * tokens * 1e3 / row[key] / limit for key in ("step_ms", "step_ms_p90", "step_ms_p10"))
            body.append(f'<rect x="{left}" y="{y + 3}" width="{bar - left:.1f}" height="{line - 6}" fill="{colour}"/>'
                        f'<path d="M{low:.1f} {y + line / 2}H{high:.1f}M{low:.1f} {y + 8}v8M{high:.1f} {y + 8}v8" stroke="#333" fill="none"/>')
            ratio = f"\u2003{row['ratio_to_best_peer']:.2f}x" if row["ratio_to_best_peer"] is not None and is_ours(row["variant"]) else ""
            text(max(bar, high) + 8, y + 16, f"{row['tokens_per_s_per_gpu']:,.0f}\u2003{row['step_ms']:.2f} ms{ratio}")
            y += line
        y += 18
    text(20, y + 6, f"{host['host']}, {host['date']}. Bars: tokens per second and GPU at the median step; whiskers: p10 to p90; x: against the best peer (red).",
         'fill="#555"')
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 24}" font-family="sans-serif" font-size="12">'
            f'<rect width="{width}" height="{y + 24}" fill="white"/>')
    return head + '<text x="20" y="32" font-size="18">Tokens per second and GPU</text>' + "".join(body) + "</svg>\n"


def put(path, text):
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def write(folder, host, cases, failures):
    tables = []
    for case in cases:
        floor = case.floor()
        tables.append((case, rows_of(case, floor[0]), floor))
    data = dict(**host, python=platform.python_version(), not_run=failures, cases=[
        dict(case=case.name, shape=case.shape, config=case.config, floor_ms=floor[0], floor_from=floor[1], predicted_step_ms=1e3 * case.plan["time"]["step_s"],
             peak_flops_per_s=case.plan["time"]["peak_flops_per_s"], flops_per_token=case.plan["flops"]["per_token"], formula=case.plan["flops"]["formula"],
             rows=rows, left_out=case.all_left_out(), runs=case.runs) for case, rows, floor in tables])
    put(os.path.join(folder, "table.json"), json.dumps(data, indent=1) + "\n")
    put(os.path.join(folder, "table.md"), markdown(host, tables, failures))
    put(os.path.join(folder, "bars.svg"), svg(host, tables))
