// The style sheet of a run's report: the look of the plan's page (runtime/plan/report/page), dark
// where the reader's system is.
#pragma once

namespace millrace {

inline constexpr char kReportStyle[] = R"css(
:root {
  --page: #f5f6f8; --card: #ffffff; --text: #1c2330; --dim: #667085; --line: #dfe3ea; --grid: #eceff4; --plot: #fafbfc;
  --accent: #2f6fde; --other: #d97706; --bad: #d9485f; color-scheme: light;
  --k0: #2f6fde; --k1: #d97706; --k2: #2e9e5b; --k3: #8b5cf6; --k4: #0e9aa7; --k5: #98a2b3; --k6: #c2478c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10141b; --card: #181d27; --text: #e4e8ef; --dim: #93a0b4; --line: #2b3342; --grid: #232a37; --plot: #131822;
    --accent: #6ea3ff; --other: #fbbf4d; --bad: #ff7a90; color-scheme: dark;
    --k0: #6ea3ff; --k1: #fbbf4d; --k2: #58c98a; --k3: #b394ff; --k4: #2cc3cf; --k5: #7b879c; --k6: #f083bd;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 14px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
section { overflow-x: auto; }
header { padding: 12px 16px; background: var(--card); border-bottom: 1px solid var(--line); }
header p { margin: 2px 0 0; color: var(--dim); }
h1 { margin: 0; font-size: 18px; }
h2 { margin: 0 0 8px; font-size: 15px; }
h3 { margin: 12px 0 4px; font-size: 12px; color: var(--dim); }
main { display: grid; gap: 16px; max-width: 1680px; margin: 0 auto; padding: 16px 16px 40px; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); }
.card, .tile { min-width: 0; margin: 0; padding: 14px 16px; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.wide { grid-column: 1 / -1; }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); }
.tile b { display: block; font-size: 20px; font-weight: 600; }
.tile span, .hint, figcaption { color: var(--dim); font-size: 12px; }
.hint { margin: 4px 0; }
.warn { margin: 4px 0; color: var(--bad); }
.plot { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 4px 8px; }
.plot svg { display: block; width: 100%; height: 200px; overflow: visible; background: var(--plot); }
.y { display: flex; flex-direction: column; justify-content: space-between; margin: -8px 0; font-size: 11px; color: var(--dim); text-align: right; white-space: nowrap; }
.x { grid-column: 2; display: flex; justify-content: space-between; font-size: 11px; color: var(--dim); }
svg * { vector-effect: non-scaling-stroke; }
polyline { fill: none; stroke-width: 1.6; stroke-linejoin: round; pointer-events: none; }
.dots { fill: none; stroke-width: 5; stroke-linecap: round; pointer-events: none; }
svg .main { stroke: var(--accent); }
svg .other { stroke: var(--other); }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
line { stroke-width: 1.5; }
.bad { stroke: var(--bad); }
.call { stroke: var(--dim); stroke-dasharray: 4 4; }
.band { fill: transparent; }
.band:hover { fill: var(--grid); }
.lanes, .map { margin: 0 0 12px; }
.lanes h3 { overflow-wrap: anywhere; }
.lanes svg { height: 72px; }
.lanes .y { margin: 0; justify-content: space-around; }
.map svg { height: 360px; }
.map rect { stroke: var(--plot); stroke-width: 0.3; }
.map .bad { stroke: var(--text); stroke-width: 2; }
.map .legend { margin-bottom: 14px; }
.legend { margin: 0 0 6px; color: var(--dim); font-size: 12px; }
.legend span { margin-right: 12px; white-space: nowrap; }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 5px; border-radius: 2px; }
svg .k0 { fill: var(--k0); }
i.k0 { background: var(--k0); }
svg .k1 { fill: var(--k1); }
i.k1 { background: var(--k1); }
svg .k2 { fill: var(--k2); }
i.k2 { background: var(--k2); }
svg .k3 { fill: var(--k3); }
i.k3 { background: var(--k3); }
svg .k4 { fill: var(--k4); }
i.k4 { background: var(--k4); }
svg .k5 { fill: var(--k5); }
i.k5 { background: var(--k5); }
svg .k6 { fill: var(--k6); }
i.k6 { background: var(--k6); }
figcaption span { display: block; }
figcaption i { display: inline-block; width: 10px; height: 10px; margin-right: 5px; border-radius: 5px; }
i.main { background: var(--accent); }
i.other { background: var(--other); }
table { width: 100%; border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th { color: var(--dim); font-size: 12px; font-weight: 600; text-align: left; }
td, th { padding: 3px 10px 3px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
td.n, th.n { text-align: right; }
td.n { white-space: nowrap; }
td.bar { width: 22%; min-width: 60px; }
td.bar i { display: block; height: 9px; margin-top: 5px; border-radius: 3px; background: var(--accent); opacity: 0.75; }
code { font-size: 12px; overflow-wrap: anywhere; }
h1, figcaption, header p { overflow-wrap: anywhere; }
#configuration table { table-layout: fixed; }
#configuration td, #environment td { overflow-wrap: anywhere; }
#environment td:first-child { min-width: 8em; }
summary { cursor: pointer; color: var(--dim); }
)css";

}  // namespace millrace
