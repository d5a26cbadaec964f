// ---- Plots: a window [x0, x1] x [y0, y1] on a canvas, moved by wheel and drag

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const kLeft = 74, kRight = 10;

class Plot {
  constructor(step, canvas, limits, margins) {
    Object.assign(this, {step, canvas, limits, margins, view: {...limits}, listeners: []});
    step.views.push(this);
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener('wheel', (e) => this.wheel(e), {passive: false});
    canvas.addEventListener('pointerdown', (e) => { this.drag = {x: e.offsetX, y: e.offsetY, view: {...this.view}, moved: false}; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener('pointermove', (e) => this.move(e));
    canvas.addEventListener('pointerup', (e) => { const d = this.drag; this.drag = null; if (d && !d.moved) this.click(this.find(e.offsetX, e.offsetY)); });
    canvas.addEventListener('pointerleave', () => { hideTip(); this.hover(null); });
    canvas.addEventListener('dblclick', () => this.reset());
  }
  begin() {
    const dpr = window.devicePixelRatio || 1, w = this.canvas.clientWidth, h = this.canvas.clientHeight;
    if (this.canvas.width !== Math.round(w * dpr) || this.canvas.height !== Math.round(h * dpr)) {
      this.canvas.width = Math.round(w * dpr);
      this.canvas.height = Math.round(h * dpr);
    }
    const c = this.canvas.getContext('2d');
    c.setTransform(dpr, 0, 0, dpr, 0, 0);
    c.clearRect(0, 0, w, h);
    c.font = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
    c.textBaseline = 'middle';
    this.w = w - kLeft - kRight;
    this.h = h - this.margins.top - this.margins.bottom;
    return c;
  }
  x(v) { return kLeft + (v - this.view.x0) / (this.view.x1 - this.view.x0) * this.w; }
  y(v) { return this.margins.top + this.h - (v - this.view.y0) / (this.view.y1 - this.view.y0) * this.h; }
  atX(px) { return this.view.x0 + (px - kLeft) / this.w * (this.view.x1 - this.view.x0); }
  atY(py) { return this.view.y0 + (this.margins.top + this.h - py) / this.h * (this.view.y1 - this.view.y0); }
  clipTo(c) { c.save(); c.beginPath(); c.rect(kLeft, this.margins.top, this.w, this.h); c.clip(); }
  set(a, b, from, to) {
    const low = this.limits[a], high = this.limits[b], span = Math.min(to - from, high - low);
    from = Math.max(low, Math.min(from, high - span));
    this.view[a] = from;
    this.view[b] = from + span;
  }
  wheel(e) {
    e.preventDefault();
    const factor = Math.exp((e.deltaY || e.deltaX) * 0.0016);
    if (e.shiftKey && !this.flat) {
      const at = this.atY(e.offsetY);
      this.set('y0', 'y1', at - (at - this.view.y0) * factor, at + (this.view.y1 - at) * factor);
    } else {
      const at = this.atX(e.offsetX);
      this.set('x0', 'x1', at - (at - this.view.x0) * factor, at + (this.view.x1 - at) * factor);
    }
    this.changed();
  }
  move(e) {
    const d = this.drag;
    if (!d) {
      const hit = this.find(e.offsetX, e.offsetY);
      this.hover(hit);
      return hit ? showTip(e, this.describe(hit)) : hideTip();
    }
    if (Math.abs(e.offsetX - d.x) + Math.abs(e.offsetY - d.y) > 3) d.moved = true;
    if (!d.moved) return;
    hideTip();
    const dx = (d.x - e.offsetX) / this.w * (d.view.x1 - d.view.x0);
    this.set('x0', 'x1', d.view.x0 + dx, d.view.x1 + dx);
    if (!this.flat) {
      const dy = (e.offsetY - d.y) / this.h * (d.view.y1 - d.view.y0);
      this.set('y0', 'y1', d.view.y0 + dy, d.view.y1 + dy);
    }
    this.changed();
  }
  reset() { this.view = {...this.limits}; this.changed(); }
  changed() { this.draw(); this.listeners.forEach((f) => f()); }
  hover() {}
  click() {}
}

function showTip(event, html) {
  const tip = $('tip');
  tip.innerHTML = html;
  tip.style.display = 'block';
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + 'px';
  tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18) + 'px';
}
function hideTip() { $('tip').style.display = 'none'; }

function label(c, text, x, y, width) {
  if (width < 24) return;
  const room = Math.floor(width / 6.2);
  c.fillText(text.length <= room ? text : text.slice(0, Math.max(1, room - 1)) + '…', x, y);
}
function rightText(c, text, x, y) { c.textAlign = 'right'; c.fillText(text, x, y); c.textAlign = 'left'; }
// Round steps of `base` that give about `count` marks in `span`.
function stepOf(span, count, base) {
  let step = base === 2 ? 2 ** Math.floor(Math.log2(span / count)) : 10 ** Math.floor(Math.log10(span / count));
  for (const m of base === 2 ? [1, 2, 4] : [1, 2, 5, 10]) if (span / (step * m) <= count) return step * m;
  return step * 10;
}

// ---- Memory map

function bodyMarks(plot, c) {
  c.fillStyle = css('--dim');
  c.strokeStyle = css('--line');
  plot.step.bodies.forEach((body) => {
    const x0 = plot.x(body.begin), x1 = plot.x(body.begin + body.ops.length);
    if (x1 < kLeft || x0 > kLeft + plot.w) return;
    const from = Math.max(x0, kLeft);
    if (x0 >= kLeft) { c.beginPath(); c.moveTo(x0, plot.margins.top - 14); c.lineTo(x0, plot.margins.top + plot.h); c.stroke(); }
    label(c, body.name, from + 4, plot.margins.top - 8, Math.min(x1, kLeft + plot.w) - from - 6);
  });
}
function byteMarks(plot, c, count) {
  const step = stepOf(plot.view.y1 - plot.view.y0, count, 2);
  for (let v = Math.ceil(plot.view.y0 / step) * step; v <= plot.view.y1; v += step) {
    c.strokeStyle = css('--grid');
    c.beginPath(); c.moveTo(kLeft, plot.y(v)); c.lineTo(kLeft + plot.w, plot.y(v)); c.stroke();
    c.fillStyle = css('--dim');
    rightText(c, bytesText(v), kLeft - 6, plot.y(v));
  }
}

class MemoryMap extends Plot {
  constructor(step, canvas) {
    super(step, canvas, {x0: 0, x1: step.end, y0: 0, y1: Math.max(step.arena, 1)}, {top: 24, bottom: 8});
  }
  draw() {
    const c = this.begin(), {buffers, chosen} = this.step;
    byteMarks(this, c, 8);
    this.clipTo(c);
    this.shown = [];
    for (const b of buffers) {
      if (this.step.hidden.classes.has(b.cls)) continue;
      const lit = this.step.bufferLit(b);
      for (const r of b.rects) {
        const x0 = this.x(r.begin), x1 = this.x(r.end), y1 = this.y(r.at), y0 = this.y(r.at + b.bytes);
        if (x1 < kLeft || x0 > kLeft + this.w || y1 < 0 || y0 > this.margins.top + this.h) continue;
        const w = Math.max(x1 - x0, 0.7), h = Math.max(y1 - y0, 0.7);
        this.shown.push({b, r, x0, x1: x0 + w, y0, y1: y0 + h});
        c.globalAlpha = lit ? 0.88 : 0.1;
        c.fillStyle = kClassColours[b.cls];
        c.fillRect(x0, y0, w, h);
        if (w > 3 && h > 3) {
          c.globalAlpha = lit ? 0.55 : 0.1;
          c.strokeStyle = css('--plot');
          c.lineWidth = 0.7;
          c.strokeRect(x0, y0, w, h);
        }
        if (lit && w > 46 && h > 11) {
          c.globalAlpha = 1;
          c.fillStyle = '#fff';
          const from = Math.max(x0, kLeft);
          label(c, b.name, from + 4, (y0 + y1) / 2, Math.min(x1, kLeft + this.w) - from - 6);
        }
      }
    }
    c.globalAlpha = 1;
    c.lineWidth = 1;
    if (chosen && chosen.op) {
      const at = this.step.bodies[chosen.op.body].begin + chosen.op.index;
      c.fillStyle = css('--accent');
      c.globalAlpha = 0.35;
      c.fillRect(this.x(at), this.margins.top, Math.max(2, this.x(at + 1) - this.x(at)), this.h);
      c.globalAlpha = 1;
    }
    c.strokeStyle = css('--text');
    c.beginPath(); c.moveTo(this.x(this.step.peak + 0.5), this.margins.top); c.lineTo(this.x(this.step.peak + 0.5), this.margins.top + this.h); c.stroke();
    c.restore();
    bodyMarks(this, c);
  }
  find(px, py) {
    for (let i = this.shown.length; i-- > 0;) {
      const s = this.shown[i];
      if (px >= s.x0 - 1 && px <= s.x1 + 1 && py >= s.y0 - 1 && py <= s.y1 + 1) return s;
    }
    return null;
  }
  click(hit) { this.step.choose(hit ? {buffer: hit.b} : null); }
  describe({b, r}) {
    return `<b>${escapeHtml(b.name)}</b><br><span class="k">${b.cls}</span> ${bytesText(b.bytes)} (${b.bytes.toLocaleString('en')} B)` +
      `<br><span class="k">offset</span> ${r.at.toLocaleString('en')} <span class="k">to</span> ${(r.at + b.bytes).toLocaleString('en')}` +
      `<br><span class="k">lives from</span> ${escapeHtml(this.step.positionText(r.begin))}<br><span class="k">until after</span> ${escapeHtml(this.step.positionText(r.end - 1))}` +
      `<br><span class="k">used by</span> ${b.ops.length} ops`;
  }
}
class LiveBytes extends Plot {
  constructor(step, canvas, map) {
    super(step, canvas, {x0: 0, x1: step.end, y0: 0, y1: 1}, {top: 6, bottom: 6});
    this.flat = true;
    this.map = map;
    this.sums = step.classes.map(() => new Float64Array(step.end + 1));
    for (const b of step.buffers)
      for (const r of b.rects) {
        this.sums[step.classes.indexOf(b.cls)][r.begin] += b.bytes;
        this.sums[step.classes.indexOf(b.cls)][r.end] -= b.bytes;
      }
    for (const s of this.sums) for (let i = 1; i < s.length; ++i) s[i] += s[i - 1];
    for (let i = 0; i <= step.end; ++i) this.limits.y1 = Math.max(this.limits.y1, 1.02 * this.sums.reduce((t, s) => t + s[i], 0));
    this.view.y1 = this.limits.y1;
  }
  changed() { Object.assign(this.map.view, {x0: this.view.x0, x1: this.view.x1}); this.map.changed(); }
  draw() {
    this.view.x0 = this.map.view.x0;
    this.view.x1 = this.map.view.x1;
    const c = this.begin();
    byteMarks(this, c, 4);
    this.clipTo(c);
    const {end, classes, hidden} = this.step, base = new Float64Array(end + 1);
    const from = Math.max(0, Math.floor(this.view.x0)), to = Math.min(end, Math.ceil(this.view.x1));
    classes.forEach((name, k) => {
      if (hidden.classes.has(name)) return;
      c.beginPath();
      c.moveTo(this.x(from), this.y(base[from]));
      for (let i = from; i < to; ++i) { const y = this.y(base[i] + this.sums[k][i]); c.lineTo(this.x(i), y); c.lineTo(this.x(i + 1), y); }
      for (let i = to; i-- > from;) { const y = this.y(base[i]); c.lineTo(this.x(i + 1), y); c.lineTo(this.x(i), y); }
      c.closePath();
      c.globalAlpha = 0.85;
      c.fillStyle = kClassColours[name];
      c.fill();
      for (let i = 0; i < base.length; ++i) base[i] += this.sums[k][i];
    });
    c.restore();
  }
  find(px) { const at = Math.floor(this.atX(px)); return at >= 0 && at < this.step.end ? {at} : null; }
  describe({at}) {
    const rows = this.step.classes.map((name, k) => `<span class="k">${name}</span> ${bytesText(this.sums[k][at])}`);
    return `<b>${escapeHtml(this.step.positionText(at))}</b><br>${rows.join('<br>')}<br><b>${bytesText(this.sums.reduce((t, s) => t + s[at], 0))}</b>`;
  }
}

// ---- Timeline

const kLane = 42;
class TimelineView extends Plot {
  constructor(step, canvas, until) {
    super(step, canvas, {x0: 0, x1: until || step.seconds || 1, y0: 0, y1: 1}, {top: 24, bottom: 24});
    this.flat = true;
    this.allEdges = false;
    this.over = null;
  }
  laneTop(s) { return this.margins.top + 10 + s * (kLane + 10); }
  draw() {
    const c = this.begin(), {streams, lanes, seconds, runs} = this.step;
    const step = stepOf(this.view.x1 - this.view.x0, Math.max(3, Math.floor(this.w / 110)), 10);
    for (let k = Math.ceil(this.view.x0 / step); k * step <= this.view.x1; ++k) {
      const x = this.x(k * step);
      c.strokeStyle = css('--grid');
      c.beginPath(); c.moveTo(x, this.margins.top); c.lineTo(x, this.margins.top + this.h); c.stroke();
      c.fillStyle = css('--dim');
      c.textAlign = 'center';
      c.fillText(timeMark(k * step, this.view.x1), x, this.margins.top + this.h + 12);
      c.textAlign = 'left';
    }
    streams.forEach((name, s) => {
      c.fillStyle = css('--text');
      c.fillText(name, 8, this.laneTop(s) + kLane / 2 - 7);
      c.fillStyle = css('--dim');
      c.fillText(percent(lanes[s].reduce((sum, r) => sum + r.end - r.begin, 0), seconds), 8, this.laneTop(s) + kLane / 2 + 8);
    });
    this.clipTo(c);
    this.drawIdle(c);
    this.drawRuns(c);
    if (this.allEdges) { c.globalAlpha = 0.35; for (const r of runs) for (const from of r.waits) this.edge(c, from, r, css('--dim')); c.globalAlpha = 1; }
    if (this.over) {
      for (const from of this.over.waits) this.edge(c, from, this.over, css('--idle'));
      for (const to of this.over.frees) this.edge(c, this.over, to, css('--accent'));
    }
    c.restore();
    this.drawEntries(c);
  }
  drawEntries(c) {
    const {bodies, schedule, runs, firstRun} = this.step;
    schedule.forEach((entry, e) => {
      const ops = runs.slice(firstRun[e], firstRun[e] + bodies[entry.body].ops.length).filter((r) => r.op.stream === 0);
      if (!ops.length) return;
      const x0 = Math.max(kLeft, this.x(ops[0].begin)), x1 = Math.min(kLeft + this.w, this.x(ops[ops.length - 1].end));
      if (x1 <= x0) return;
      c.strokeStyle = css('--line');
      c.beginPath(); c.moveTo(x0 + 0.5, 6); c.lineTo(x0 + 0.5, this.margins.top + this.h); c.stroke();
      c.fillStyle = css('--dim');
      label(c, schedule.length > 3 ? `${bodies[entry.body].name} #${entry.microbatch}` : bodies[entry.body].name, x0 + 4, 12, x1 - x0 - 6);
    });
  }
  drawRuns(c) {
    this.shown = [];
    for (const r of this.step.runs) {
      if (this.step.hidden.groups.has(r.op.group)) continue;
      const x0 = this.x(r.begin), x1 = this.x(r.end);
      if (x1 < kLeft || x0 > kLeft + this.w) continue;
      const w = Math.max(x1 - x0, 0.6), y = this.laneTop(r.op.stream), lit = this.step.opLit(r.op);
      this.shown.push({r, x0, x1: x0 + w, y});
      c.globalAlpha = lit ? 0.92 : 0.14;
      c.fillStyle = kGroupColours[r.op.group];
      c.fillRect(x0, y, w > 3 ? w - 0.6 : w, kLane);
      if (lit && w > 40) {
        c.globalAlpha = 1;
        c.fillStyle = '#fff';
        const from = Math.max(x0, kLeft);
        label(c, r.op.label || r.op.kind, from + 4, y + kLane / 2, Math.min(x1, kLeft + this.w) - from - 6);
      }
    }
    c.globalAlpha = 1;
  }
  // Compute has nothing to run: hatched.
  drawIdle(c) {
    let end = 0;
    const y = this.laneTop(0);
    const gap = (from, to) => {
      const x0 = Math.max(kLeft, this.x(from)), x1 = Math.min(kLeft + this.w, this.x(to));
      if (x1 - x0 < 1) return;
      c.fillStyle = css('--idle');
      c.globalAlpha = 0.16;
      c.fillRect(x0, y, x1 - x0, kLane);
      c.globalAlpha = 0.5;
      c.strokeStyle = css('--idle');
      c.save(); c.beginPath(); c.rect(x0, y, x1 - x0, kLane); c.clip(); c.beginPath();
      for (let x = x0 - kLane; x < x1; x += 7) { c.moveTo(x, y + kLane); c.lineTo(x + kLane, y); }
      c.stroke(); c.restore();
      c.globalAlpha = 1;
    };
    const {lanes, seconds} = this.step;
    for (const r of lanes[0]) { if (r.begin > end) gap(end, r.begin); end = r.end; }
    if (seconds > end) gap(end, seconds);
  }
  edge(c, from, to, colour) {
    const down = to.op.stream > from.op.stream;
    const x0 = this.x(from.end), x1 = this.x(to.begin), y0 = this.laneTop(from.op.stream) + (down ? kLane : 0), y1 = this.laneTop(to.op.stream) + (down ? 0 : kLane);
    c.strokeStyle = colour;
    c.beginPath(); c.moveTo(x0, y0); c.bezierCurveTo(x0 + 12, (y0 + y1) / 2, x1 - 12, (y0 + y1) / 2, x1, y1); c.stroke();
    c.fillStyle = colour;
    c.beginPath(); c.arc(x1, y1, 2.2, 0, 7); c.fill();
  }
  find(px, py) {
    let best = null;
    for (const s of this.shown || []) if (py >= s.y && py <= s.y + kLane && px >= s.x0 - 1 && px <= s.x1 + 1 && (!best || px >= s.x0)) best = s;
    return best;
  }
  hover(hit) {
    const over = hit ? hit.r : null;
    if (over !== this.over) { this.over = over; this.draw(); }
  }
  click(hit) { this.step.choose(hit ? {op: hit.r.op} : null); }
  describe({r}) {
    const op = r.op, {buffers, bodies, streams, schedule} = this.step;
    const names = (ids) => escapeHtml([...new Set(ids)].map((id) => buffers[id].name).join(', ') || '–');
    return `<b>${escapeHtml(op.label || op.kind)}</b> <span class="k">${escapeHtml(op.kind)}, ${streams[op.stream]}, ${escapeHtml(bodies[op.body].name)} #${schedule[r.entry].microbatch}</span>` +
      `<br>${secondsText(r.begin)} <span class="k">to</span> ${secondsText(r.end)} <span class="k">(${secondsText(r.end - r.begin)})</span>` +
      (buffers.length === 0 ? '' : `<br>${countText(op.flops)}FLOP, ${bytesText(op.memory)} <span class="k">memory</span>` +
        (op.wire ? `, ${bytesText(op.wire)} <span class="k">wire</span>` : '') +
        (op.seconds > 0 ? `<br>${countText(op.flops / op.seconds)}FLOP/s, ${countText(op.memory / op.seconds)}B/s` : '') +
        `<br><span class="k">reads</span> ${names(op.reads)}<br><span class="k">writes</span> ${names(op.writes)}`) +
      (r.waits.length ? `<br><span class="k">waits for</span> ${escapeHtml(r.waits.map((w) => w.op.label || w.op.kind).join(', '))}` : '');
  }
}
function timeMark(t, largest) {
  const [unit, name] = largest >= 1 ? [1, ' s'] : largest >= 1e-3 ? [1e-3, ' ms'] : [1e-6, ' µs'];
  return +(t / unit).toFixed(6) + name;
}
