'use strict';
// Text, colours, and a step as step_picture.h describes it.
const data = JSON.parse(document.getElementById('data').textContent);
const $ = (id) => document.getElementById(id);

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

const kClassColours = {parameters: '#4a7fc1', gradients: '#ee6677', optimizer: '#a45ab5', activations: '#3a9d5d', workspaces: '#98a1ad', slots: '#52bcd8', runtime: '#ccb544'};
const kGroupColours = {matmul: '#4a7fc1', attention: '#a45ab5', norm: '#3a9d5d', 'element-wise': '#ccb544', communication: '#ee6677', cast: '#52bcd8', optimizer: '#d9843b', other: '#98a1ad'};
const kGroups = new Map(Object.entries({matmul: 'matmul', attention: 'attention', attention_grad: 'attention', rope: 'attention', rope_table: 'attention', norm: 'norm', norm_grad: 'norm', norm_sums: 'norm',
  add: 'element-wise', activation: 'element-wise', activation_grad: 'element-wise', cross_entropy: 'element-wise', column_sum: 'element-wise', embed: 'element-wise',
  embed_grad: 'element-wise', all_gather: 'communication', reduce_scatter: 'communication', all_reduce: 'communication', cast: 'cast', concat: 'cast', accumulate: 'cast',
  adamw: 'optimizer', sum_squares: 'optimizer', step_stats: 'optimizer', finite_scan: 'optimizer', begin_step: 'optimizer'}));

// With what is filtered and chosen in it, for the views that show it.
class Step {
  constructor({classes, streams, kinds, end, arena, peak, persistent, buffers, bodies, schedule}) {
    Object.assign(this, {classes, streams, end, arena, peak, persistent, schedule, views: [], query: '', chosen: null, seconds: 0});
    this.hidden = {classes: new Set(), groups: new Set()};
    this.buffers = buffers.map(([name, bytes, cls, live, at], id) => {
      const rects = [];
      for (let i = 0; i < live.length; i += 2) rects.push({begin: live[i], end: live[i + 1], at: at.length > 1 ? at[i / 2] : at[0]});
      return {id, name, bytes, cls: classes[cls], rects, ops: []};
    });
    this.bodies = bodies.map((body, b) => ({
      name: body.name, begin: body.begin,
      ops: body.ops.map(([kind, stream, label, flops, memory, wire, ns, reads, writes], o) => {
        const op = {body: b, index: o, kind: kinds[kind], stream, label, flops, memory, wire, seconds: ns / 1e9, reads, writes, runs: 0};
        op.group = kGroups.get(op.kind) || 'other';
        for (const id of new Set([...reads, ...writes])) this.buffers[id].ops.push(op);
        return op;
      }),
    }));
    this.runs = [];  // ops of the step in issue order
    this.firstRun = [];
    schedule.forEach((entry, e) => {
      this.firstRun.push(this.runs.length);
      this.bodies[entry.body].ops.forEach((op, o) => {
        ++op.runs;
        this.runs.push({op, entry: e, begin: entry.t[2 * o] / 1e9, end: entry.t[2 * o + 1] / 1e9, waits: [], frees: []});
        this.seconds = Math.max(this.seconds, entry.t[2 * o + 1] / 1e9);
      });
    });
    schedule.forEach((entry, e) => {
      for (let i = 0; i < entry.edges.length; i += 3) {
        const from = this.runs[this.firstRun[entry.edges[i]] + entry.edges[i + 1]], to = this.runs[this.firstRun[e] + entry.edges[i + 2]];
        to.waits.push(from);
        from.frees.push(to);
      }
    });
    this.lanes = streams.map((_, s) => this.runs.filter((r) => r.op.stream === s));
  }
  ops() { return this.bodies.flatMap((b) => b.ops); }
  positionText(at) {
    for (const body of this.bodies)
      if (at >= body.begin && at < body.begin + body.ops.length) {
        const op = body.ops[at - body.begin];
        return `${body.name}: ${op.label || op.kind}`;
      }
    return 'the end';
  }
  matchesText(text) { return this.query === '' || text.toLowerCase().includes(this.query); }
  matchesOp(op) { return this.matchesText(op.label) || this.matchesText(op.kind); }
  bufferLit(b) {
    const chosen = this.chosen;
    if (chosen) return chosen.buffer ? chosen.buffer === b : chosen.op.reads.includes(b.id) || chosen.op.writes.includes(b.id);
    return this.matchesText(b.name);
  }
  opLit(op) {
    if (this.chosen) return this.chosen.op ? this.chosen.op === op : this.chosen.buffer.ops.includes(op);
    return this.matchesOp(op);
  }
  choose(what) {
    const same = this.chosen && what && this.chosen.buffer === what.buffer && this.chosen.op === what.op;
    this.chosen = same ? null : what;
    this.draw();
  }
  draw() { this.views.forEach((view) => view.draw()); }
}
