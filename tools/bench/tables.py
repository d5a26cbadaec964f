#!/usr/bin/env python3
"""The tables of README.md, made from the JSON in tools/bench/results: each part between its two marks.

  python3 -B tools/bench/tables.py           # write README.md and SEEDS.md again
  python3 -B tools/bench/tables.py --check   # exit 1 when one of them is not what the JSON gives

A file is one commit on one machine, so the rows of a table are, too; beside peers, ours and theirs were run in turn, round by round. Standard library only.
"""
import os, pathlib, sys
import device_tables, results, seed_page

README = pathlib.Path(__file__).resolve().parent / "README.md"
GIB = 2**30
HEAD = ["case", "Millrace", "deterministic", "best peer", "others", "x best peer", "x floor", "x floor by rates", "GiB, ours / best peer", "host us / graph nodes"]


def joined(rows, key):
    return [value for row in rows for value in row[key]]


def time_of(rows):
    return "{:.2f} ({:.2f}, {:.2f})".format(*results.spread(joined(rows, "step_ms")))


def label(row):
    return row["variant"] + (f" ({row['sdpa']})" if row["sdpa"] else "")


def of_case(runs):
    """Cells of one case, from its runs. A ratio is given where the intervals from p10 to p90 do not touch."""
    fine = {}
    for row in runs:
        if row["ok"]:
            fine.setdefault((row["variant"], row["sdpa"]), []).append(row)
    median = {key: results.spread(joined(rows, "step_ms"))[0] for key, rows in fine.items()}
    peers = sorted((key for key in fine if not key[0].startswith("millrace")), key=median.get)
    failed = [f"{label(row)}: no result" for row in runs if not row["ok"]]
    ours, exact = fine.get(("millrace", None)), fine.get(("millrace deterministic", None))
    others = [f"{label(fine[key][0])} {median[key]:.2f}" for key in peers[1:]] + list(dict.fromkeys(failed))
    ratio = floor = rates = ""
    if ours:
        if peers:
            said = results.verdict(joined(ours, "step_ms"), joined(fine[peers[0]], "step_ms"))
            ratio = said if said == "within spread" else f"{median[peers[0]] / median[('millrace', None)]:.2f}"
        found = [row["raw"] for row in ours if "floor_ms" in (row["raw"] or {})]
        if found:
            floor, rates = (f"{median[('millrace', None)] / found[0][key]:.2f}" if key in found[0] else "" for key in ("floor_ms", "rate_floor_ms"))
    memory = " / ".join(f"{max(row['working_bytes'] for row in rows) / GIB:.2f}" if rows and rows[0]["working_bytes"] is not None else ""
                        for rows in (ours, fine[peers[0]] if peers else None))
    host = f"{results.quantile([row['host_us'] for row in ours], 0.5):.0f} / {ours[0]['raw']['graph_nodes']}" if ours else ""
    return [time_of(ours) if ours else "no result", f"{median[('millrace deterministic', None)]:.2f}" if exact else "",
            f"{label(fine[peers[0]][0])} {time_of(fine[peers[0]])}" if peers else "none", ", ".join(others), ratio, floor, rates, memory, host]


def headline(data):
    groups = {}
    for row in data["rows"]:
        groups.setdefault(row["group"], []).append(row["result"])
    dates = sorted(row["date"][:10] for row in data["rows"])
    when = dates[0] if dates and dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}" if dates else "no rows"
    lines = ["| " + " | ".join(HEAD) + " |", "|---|" + "--:|" * (len(HEAD) - 1)]
    lines += ["| " + " | ".join([group, *of_case(runs)]) + " |" for group, runs in groups.items()]
    return ["", f"`{data['command']}`, {data['machine']}, commit {data['commit']}, {when}:", "", *lines]


def peers(folder):
    text = ["Medians in ms with 10th and 90th percentile of all rounds' steps. Memory is our arena and what PyTorch has allocated. x best peer is its median over ours, given where the",
            "intervals do not touch. The floors are `bench --floor`'s of the same run: of our own ops alone, and by rates of the machine."]
    files = sorted(folder.glob("headline_*.json"))
    if not files:
        return ["Not measured at this commit: `tools/bench/device.sh` does it. [HISTORY.md](HISTORY.md) has the tables of earlier commits."]
    for path in files:
        text += headline(results.load(path))
    return text


PARTS = {"peers": peers, "prefill": device_tables.prefill, "era": device_tables.era, "decode": device_tables.decode, "decode_in_turn": device_tables.decode_in_turn,
         "exact": device_tables.exact,
         "grpo": device_tables.grpo, "hybrids": device_tables.hybrids, "gate": device_tables.gate, "sanitizers": device_tables.sanitizers,
         "fp8": device_tables.fp8, "rows": device_tables.rows, "bitwise": device_tables.bitwise, "long_runs": device_tables.long_runs,
         "documents": device_tables.documents, "advice": device_tables.advice}


def marks(name):
    return f"<!-- made by tables.py: {name}: begin -->", f"<!-- made by tables.py: {name}: end -->"


def whole(text, folder=results.FOLDER):
    """README.md with what the JSON gives."""
    for name, made in PARTS.items():
        begin, end = marks(name)
        first, last = text.find(begin), text.find(end)
        if first < 0 or last < first or text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{README}: the marks {begin} and {end} are not there once each, in this order")
        text = text[:first] + "\n".join([begin, *made(folder), ""]) + text[last:]
    return text


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    text = README.read_text(encoding="utf-8")
    if sys.argv[1:]:
        stale = [name for name, now, made in (("README.md", text, whole(text)), ("SEEDS.md", seed_page.PAGE.read_text(), seed_page.made())) if now != made]
        return f"not what the JSON in tools/bench/results gives: {', '.join(stale)}" if stale else 0
    part = README.with_name("README.md.part")
    part.write_text(whole(text), encoding="utf-8")
    os.replace(part, README)
    seed_page.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
