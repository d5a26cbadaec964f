#!/usr/bin/env python3
"""Loss curves of several runs in one SVG, and how far each is from the first.

  python3 tools/bench/loss_curves.py --out curves.svg --title TEXT NAME=FILE.jsonl NAME=FILE.jsonl...

Each file has a JSON line per step with `step` and `loss`. Upper panel: losses over steps, smoothed over 20 steps, the raw ones faint behind. Lower
panel: difference from the first run, step by step. Prints a Markdown table of both at a few steps. Standard library only.
"""
import argparse, json, math

COLOURS = ["#1f4e8c", "#c8553d", "#3a7d44", "#7b5ea7"]
WIDTH, LEFT, RIGHT, TOP, UPPER, GAP, LOWER = 960, 70, 20, 50, 380, 40, 160


def read(path):
    with open(path) as lines:
        values = [json.loads(line) for line in lines]
    return {v["step"]: v["loss"] for v in values if "loss" in v}


def smooth(curve, span=20):
    steps, out = sorted(curve), {}
    for i, s in enumerate(steps):
        part = [curve[t] for t in steps[max(0, i - span + 1):i + 1]]
        out[s] = sum(part) / len(part)
    return out


def ticks(low, high, count=6):
    raw = (high - low) / count or 1
    unit = 10 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw)
    first = math.ceil(low / step) * step
    return [first + i * step for i in range(int((high - first) / step + 1e-9) + 1)]


class Panel:
    def __init__(self, top, height, x, y):
        self.top, self.height, self.x, self.y = top, height, x, y

    def at(self, step, value):
        px = LEFT + (step - self.x[0]) / (self.x[1] - self.x[0]) * (WIDTH - LEFT - RIGHT)
        py = self.top + self.height - (value - self.y[0]) / (self.y[1] - self.y[0]) * self.height
        return px, py

    def frame(self, label):
        out = [f'<rect x="{LEFT}" y="{self.top}" width="{WIDTH - LEFT - RIGHT}" height="{self.height}" fill="none" stroke="#999"/>']
        for t in ticks(*self.y, 5):
            y = self.at(self.x[0], t)[1]
            out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e5e5"/>'
                       f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{t:g}</text>')
        for t in ticks(*self.x):
            x = self.at(t, self.y[0])[0]
            out.append(f'<text x="{x:.1f}" y="{self.top + self.height + 16}" text-anchor="middle">{t:g}</text>')
        out.append(f'<text x="{LEFT + 8}" y="{self.top + 16}" font-weight="bold">{label}</text>')
        return out

    def line(self, curve, colour, width, opacity):
        points = " ".join("%.1f,%.1f" % self.at(s, min(max(curve[s], self.y[0]), self.y[1])) for s in sorted(curve))
        return [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"/>']


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--out", required=True)
    parser.add_argument("--title", default="training loss")
    args = parser.parse_args()
    curves = {name: read(path) for name, path in (r.split("=", 1) for r in args.runs)}
    names = list(curves)
    last = max(max(c) for c in curves.values())
    losses = [v for c in curves.values() for v in c.values()]
    upper = Panel(TOP, UPPER, (0, last), (min(losses) * 0.98, max(losses) * 1.02))
    body = upper.frame("loss (20-step mean; raw behind)")
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        body += upper.line(curves[name], colour, 0.7, 0.25) + upper.line(smooth(curves[name]), colour, 1.6, 1)
        body.append(f'<text x="{WIDTH - RIGHT - 10}" y="{TOP + 20 + 18 * i}" text-anchor="end" fill="{colour}">{name}</text>')
    base = curves[names[0]]
    apart = {n: {s: curves[n][s] - base[s] for s in curves[n] if s in base} for n in names[1:]}
    limit = max([abs(v) for c in apart.values() for v in c.values()] + [1e-6]) * 1.1
    lower = Panel(TOP + UPPER + GAP, LOWER, (0, last), (-limit, limit))
    body += lower.frame(f"difference from {names[0]}, step by step")
    for i, name in enumerate(names[1:], 1):
        body += lower.line(apart[name], COLOURS[i % len(COLOURS)], 0.9, 0.9)
    height = TOP + UPPER + GAP + LOWER + 40
    with open(args.out, "w") as svg:
        svg.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
                  f'<rect width="{WIDTH}" height="{height}" fill="white"/><text x="{LEFT}" y="28" font-size="16">{args.title}</text>'
                  + "".join(body) + "</svg>\n")
    print("| step | " + " | ".join(names) + " |" + "\n|---|" + "---|" * len(names))
    common = sorted(set.intersection(*(set(c) for c in curves.values())))
    smoothed = {n: smooth(curves[n]) for n in names}
    for s in sorted({common[0], *(common[int(f * (len(common) - 1))] for f in (0.01, 0.1, 0.25, 0.5, 0.75, 1))}):
        print(f"| {s} | " + " | ".join(f"{smoothed[n][s]:.4f}" for n in names) + " |")


if __name__ == "__main__":
    main()
