// The tables of a plan, and what ties them to its pictures.
const report = data.report, plan = steps.planned;

// ---- Tables

function table(head, rows, bar) {
  const th = head.map((h, i) => `<th${i ? ' class="n"' : ''}>${h}</th>`).join('') + (bar ? '<th></th>' : '');
  const most = bar ? Math.max(...rows.map(bar), 1e-30) : 1;
  const body = rows.map((row) => {
    const cells = row.cells.map((cell, i) => `<td${i ? ' class="n"' : ''}>${cell}</td>`).join('');
    return `<tr${row.total ? ' class="total"' : ''}${row.key !== undefined ? ` data-key="${row.key}"` : ''}>${cells}` +
      (bar ? `<td class="bar"><i style="width:${(100 * bar(row) / most).toFixed(1)}%"></i></td>` : '') + '</tr>';
  });
  return `<thead><tr>${th}</tr></thead><tbody>${body.join('')}</tbody>`;
}
function fill(id, html) { $(id).querySelector('table').innerHTML = html; }
const dot = (colour) => `<i class="dot" style="background:${colour}"></i>`;

function fillTables() {
  const m = report.memory, t = report.time, w = report.wire, s = report.step, machine = report.machine;
  const memory = plan.classes.map((k) => ({value: m.bytes_at_peak[k], cells: [dot(kClassColours[k]) + k, bytesText(m.bytes_per_rank[k]), bytesText(m.bytes_at_peak[k])]}));
  memory.push({total: true, value: 0, cells: ['all', '', bytesText(Object.values(m.bytes_at_peak).reduce((a, b) => a + b, 0))]});
  const pairs = (rows) => rows.map(([k, v]) => ({cells: [escapeHtml(k), escapeHtml(v)]}));
  const purposes = {parameters: 'parameters', gradients: 'gradients', gradient_replicas: 'gradients between replicas', statistics: 'statistics', exchanges: 'exchanged rows'};
  const wire = Object.entries(w.by_collective).map(([k, v]) => ({cells: [k.replace('_', '-'), v.count, bytesText(v.bytes)]}));
  for (const [k, v] of Object.entries(w.by_purpose)) wire.push({cells: ['for ' + purposes[k], '', bytesText(v)]});
  const as = Object.entries(w.parameters_as);
  if (as.length > 1) for (const [k, v] of as) wire.push({cells: ['parameters as ' + k, '', bytesText(v)]});
  wire.push({cells: ['concatenated', '', bytesText(s.concatenated_bytes)]}, {cells: ['cast', '', bytesText(s.cast_bytes)]}, {cells: ['copied', '', bytesText(s.copied_bytes)]});
  const kinds = report.roofline.by_kind.map((k) => ({value: k.seconds, cells: [k.kind, k.count, secondsText(k.seconds), percent(k.seconds, t.roofline_s), countText(k.flops),
    bytesText(k.read_bytes + k.write_bytes), bytesText(k.wire_bytes), k.bound]}));
  const value = (r) => r.value;
  fill('memory', table(['class', 'its peak', 'at the peak'], memory, value));
  fill('wire', table(['', 'count', 'bytes'], wire));
  fill('time', table(['', ''], pairs([
      ['machine', machine.title], ['step', secondsText(t.step_s)], ['roofline, all ops', secondsText(t.roofline_s)],
      ['exposed communication', `${secondsText(t.exposed_communication_s)} (${percent(t.exposed_communication_s, t.step_s)})`],
      ['waiting for gather / reduce', `${secondsText(t.exposed_by_stream_s.gather)} / ${secondsText(t.exposed_by_stream_s.reduce)}`],
      ['tokens/s', countText(t.tokens_per_s)], ['tokens/s per rank', countText(t.tokens_per_s_per_rank)],
      ['MFU causal / full', `${(100 * t.mfu_causal).toFixed(1)}% / ${(100 * t.mfu_full).toFixed(1)}% of ${countText(t.peak_flops_per_s)}FLOP/s`],
      ['GEMM bf16 / f32', `${countText(machine.gemm_bf16_flops_per_s)}FLOP/s / ${countText(machine.gemm_f32_flops_per_s)}FLOP/s`],
      ...(machine.gemm_fp8_flops_per_s ? [['GEMM FP8', `${countText(machine.gemm_fp8_flops_per_s)}FLOP/s`]] : []),
      ['memory, link', `${countText(machine.memory_bytes_per_s)}B/s, ${countText(machine.link_bytes_per_s)}B/s + ${secondsText(machine.collective_latency_s)}`]])));
  fill('options', table(['key', 'value'], pairs(Object.entries(report.options))));
  fill('roofline', table(['op', 'count', 'time', 'share', 'FLOPs', 'memory', 'wire', 'bound'], kinds, value));
  $('choices').innerHTML = report.choices.map((c) => `<li>${escapeHtml(c)}</li>`).join('');
}

const kMostRows = 400;
function fillLists() {
  const bs = plan.buffers.filter((b) => plan.matchesText(b.name) && b.rects.length).sort((a, b) => b.bytes - a.bytes);
  $('buffers').innerHTML = table(['buffer', 'class', 'bytes', 'offset', 'lives', 'ops'], bs.slice(0, kMostRows).map((b) => ({key: b.id,
    cells: [dot(kClassColours[b.cls]) + escapeHtml(b.name), b.cls, bytesText(b.bytes), b.rects[0].at.toLocaleString('en'),
      b.rects.map((r) => `${r.begin}–${r.end}`).slice(0, 3).join(' ') + (b.rects.length > 3 ? ' …' : ''), b.ops.length]})));
  $('buffer-count').textContent = bs.length > kMostRows ? `largest ${kMostRows} of ${bs.length}` : `${bs.length}`;
  const all = plan.ops().filter((op) => op.runs > 0);
  const os = all.filter((op) => plan.matchesOp(op)).sort((a, b) => b.seconds - a.seconds);
  $('ops').innerHTML = table(['op', 'kind', 'stream', 'body', 'runs', 'time', 'FLOPs', 'memory', 'wire'], os.slice(0, kMostRows).map((op) => ({key: op.body + ',' + op.index,
    cells: [dot(kGroupColours[op.group]) + escapeHtml(op.label || op.kind), op.kind, plan.streams[op.stream], plan.bodies[op.body].name, op.runs, secondsText(op.seconds), countText(op.flops),
      bytesText(op.memory), bytesText(op.wire)]})));
  $('op-count').textContent = os.length > kMostRows ? `longest ${kMostRows} of ${os.length}` : `${os.length}`;
  $('matches').textContent = plan.query ? `${bs.length} buffers, ${os.length} ops` : '';
}

function fillTiles() {
  const m = report.memory, t = report.time, f = report.flops;
  const tiles = [
    [bytesText(m.arena_bytes), 'arena of one rank', `${percent(m.arena_bytes - m.lower_bound_bytes, m.lower_bound_bytes)} above its lower bound`],
    [secondsText(t.step_s), 'per step on ' + report.machine.name, `${report.step.ops.toLocaleString('en')} ops, ${countText(f.per_rank_and_step.causal)}FLOP per rank`],
    [countText(t.tokens_per_s), 'tokens/s', `${countText(t.tokens_per_s_per_rank)} per rank`],
    [(100 * t.mfu_causal).toFixed(1) + '%', 'MFU, causal', `${(100 * t.mfu_full).toFixed(1)}% full, of ${countText(t.peak_flops_per_s)}FLOP/s`],
    [secondsText(t.exposed_communication_s), 'exposed communication', percent(t.exposed_communication_s, t.step_s) + ' of the step'],
    [bytesText(report.wire.bytes_per_rank_and_step), 'sent per rank and step', `checkpoint ${bytesText(report.checkpoint.bytes)}`],
  ];
  $('tiles').innerHTML = tiles.map(([b, s, e]) => `<div class="tile"><span>${s}</span><b>${b}</b><em>${e}</em></div>`).join('');
  const model = report.model, b = report.batch, mesh = report.mesh;
  $('hash').textContent = report.plan.hash;
  $('subtitle').textContent = `${model.family}, ${model.layers} layers, ${countText(model.parameters)} parameters · ${mesh.world} ranks (replicate ${mesh.replicate} × shard ${mesh.shard}${mesh.tensor ? ' × tensor ' + mesh.tensor : ''}) · ` +
    `${b.micro_batch} × ${b.seq_len} tokens per ${mesh.data_ranks ? 'data rank' : 'rank'} × ${b.accumulate} = ${b.tokens_per_step.toLocaleString('en')} tokens per step · ${report.plan.kind}`;
}

// ---- Start

$('search').oninput = (e) => { plan.query = e.target.value.trim().toLowerCase(); plan.chosen = null; fillLists(); plan.draw(); };
$('buffers').onclick = (e) => { const row = e.target.closest('tr[data-key]'); if (row) plan.choose({buffer: plan.buffers[+row.dataset.key]}); };
$('ops').onclick = (e) => { const row = e.target.closest('tr[data-key]'); if (row) { const [b, o] = row.dataset.key.split(','); plan.choose({op: plan.bodies[b].ops[o]}); } };

fillTiles();
fillTables();
fillLists();
