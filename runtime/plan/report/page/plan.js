'use strict';
// The plan as plan_html.cc writes it; see there for the fields.
const plan = JSON.parse(document.getElementById('plan').textContent);
const report = plan.report;
const $ = (id) => document.getElementById(id);

// ---- Text

const escapeHtml = (text) => String(text).replace(/[&<>"]/g, (c) => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'})[c]);
const short = (v) => v >= 99.95 ? v.toFixed(0) : v >= 9.995 ? v.toFixed(1) : v.toFixed(2);
function scaled(value, base, units) {
  let u = 0;
  while (u + 1 < units.length && value >= base * 0.99995) { value /= base; ++u; }
  return (u === 0 ? value.toFixed(0) : short(value)) + units[u];
}
const bytesText = (b) => scaled(b, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB']);
const countText = (n) => scaled(n, 1000, ['', ' k', ' M', ' G', ' T', ' P', ' E']);
const secondsText = (s) => s >= 0.9995 ? short(s) + ' s' : s >= 0.9995e-3 ? short(s * 1e3) + ' ms' : short(s * 1e6) + ' µs';
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + '%' : '–';

// ---- Plan

const kClassColours = {parameters: '#4a7fc1', gradients: '#ee6677', optimizer: '#a45ab5', activations: '#3a9d5d', workspaces: '#98a1ad', slots: '#52bcd8', runtime: '#ccb544'};
const kGroupColours = {matmul: '#4a7fc1', attention: '#a45ab5', norm: '#3a9d5d', 'element-wise': '#ccb544', communication: '#ee6677', cast: '#52bcd8', optimizer: '#d9843b', other: '#98a1ad'};
const kGroups = {matmul: 'matmul', attention: 'attention', attention_grad: 'attention', rope: 'attention', rope_table: 'attention', norm: 'norm', norm_grad: 'norm',
  add: 'element-wise', activation: 'element-wise', activation_grad: 'element-wise', cross_entropy: 'element-wise', column_sum: 'element-wise', embed: 'element-wise',
  embed_grad: 'element-wise', all_gather: 'communication', reduce_scatter: 'communication', all_reduce: 'communication', cast: 'cast', concat: 'cast', accumulate: 'cast',
  adamw: 'optimizer', sum_squares: 'optimizer', step_stats: 'optimizer', finite_scan: 'optimizer', begin_step: 'optimizer'};

const buffers = plan.buffers.map(([name, bytes, cls, live, at], id) => {
  const rects = [];
  for (let i = 0; i < live.length; i += 2) rects.push({begin: live[i], end: live[i + 1], at: at.length > 1 ? at[i / 2] : at[0]});
  return {id, name, bytes, cls: plan.classes[cls], rects, ops: []};
});
const bodies = plan.bodies.map((body, b) => ({
  name: body.name, begin: body.begin,
  ops: body.ops.map(([kind, stream, label, flops, read, write, wire, ns, reads, writes], o) => {
    const op = {body: b, index: o, kind: plan.kinds[kind], stream, label, flops, memory: read + write, wire, seconds: ns / 1e9, reads, writes, runs: 0};
    op.group = kGroups[op.kind] || 'other';
    for (const id of new Set([...reads, ...writes])) buffers[id].ops.push(op);
    return op;
  }),
}));
const runs = [];    // ops of the step as simulated, in issue order
const firstRun = [];
plan.schedule.forEach((entry, e) => {
  firstRun.push(runs.length);
  bodies[entry.body].ops.forEach((op, o) => {
    ++op.runs;
    runs.push({op, entry: e, begin: entry.t[2 * o] / 1e9, end: entry.t[2 * o + 1] / 1e9, waits: [], frees: []});
  });
});
plan.schedule.forEach((entry, e) => {
  for (let i = 0; i < entry.edges.length; i += 3) {
    const from = runs[firstRun[entry.edges[i]] + entry.edges[i + 1]], to = runs[firstRun[e] + entry.edges[i + 2]];
    to.waits.push(from);
    from.frees.push(to);
  }
});
const lanes = plan.streams.map((_, s) => runs.filter((r) => r.op.stream === s));
const stepSeconds = report.time.step_s;
const lastPosition = plan.end;

// ---- State shared by the views

const hiddenClasses = new Set();
const hiddenGroups = new Set();
let query = '';
let chosen = null;  // {buffer} or {op}
const matchesText = (text) => query === '' || text.toLowerCase().includes(query);
const matchesOp = (op) => matchesText(op.label) || matchesText(op.kind);
function bufferLit(b) {
  if (chosen) return chosen.buffer ? chosen.buffer === b : chosen.op.reads.includes(b.id) || chosen.op.writes.includes(b.id);
  return matchesText(b.name);
}
function opLit(op) {
  if (chosen) return chosen.op ? chosen.op === op : chosen.buffer.ops.includes(op);
  return matchesOp(op);
}
function choose(what) {
  const same = chosen && what && chosen.buffer === what.buffer && chosen.op === what.op;
  chosen = same ? null : what;
  drawAll();
}
