// ---- The page's pictures, each in its element, and its colours

const steps = Object.fromEntries(Object.entries(data.steps).map(([name, step]) => [name, new Step(step)]));

function legend(element, colours, hidden, present, step) {
  element.innerHTML = Object.entries(colours).filter(([k]) => present.has(k)).map(([k, v]) => `<span data-k="${k}"><i style="background:${v}"></i>${k}</span>`).join('');
  element.onclick = (e) => {
    const span = e.target.closest('span');
    if (!span) return;
    hidden.has(span.dataset.k) ? hidden.delete(span.dataset.k) : hidden.add(span.dataset.k);
    span.classList.toggle('off');
    step.draw();
  };
}
// A row of legend, a check box and a button over the canvases; returns what finds its parts.
function frame(at, box, hint, canvases) {
  const element = $(at);
  element.insertAdjacentHTML('beforeend', `<div class="head"><div class="legend"></div>${box ? `<label><input type="checkbox"> ${box}</label>` : ''}
    <button type="button">Reset view</button></div><p class="hint">${escapeHtml(hint)}</p>${canvases}`);
  return (selector) => element.querySelector(selector);
}

function memoryPicture({at, step: name}) {
  const step = steps[name];
  const find = frame(at, step.persistent > 0 ? 'persistent state' : '', 'Each rectangle is a buffer while it lives: across, the ops in canonical order; up, its place ' +
    'in the arena. Wheel zooms, shift + wheel zooms upwards, drag moves, click follows a buffer to the ops that use it. The line: most bytes live.',
    '<canvas class="plot map"></canvas><h3>Live bytes by class</h3><canvas class="plot live"></canvas>');
  const map = new MemoryMap(step, find('.map')), live = new LiveBytes(step, find('.live'), map), box = find('input');
  map.listeners.push(() => live.draw());
  legend(find('.legend'), kClassColours, step.hidden.classes, new Set(step.buffers.map((b) => b.cls)), step);
  find('button').onclick = () => map.reset();
  if (!box) return;
  box.checked = true;
  box.onchange = () => { map.limits.y0 = box.checked ? 0 : Math.min(step.persistent, map.limits.y1 * 0.999); map.reset(); };
}

function timelinePicture({at, step: name, until, text}) {
  const step = steps[name], edges = step.schedule.some((entry) => entry.edges.length);
  const find = frame(at, edges ? 'all edges' : '', `${step.runs.length.toLocaleString('en')} ops, until ${secondsText(step.seconds)}. ${text || ''}` +
    (edges ? ' Hover shows what an op waits for (red) and what waits for it (blue); click marks the buffers that it uses.' : ''), '<canvas class="plot lanes"></canvas>');
  const view = new TimelineView(step, find('.lanes'), until);
  legend(find('.legend'), kGroupColours, step.hidden.groups, new Set(step.ops().map((op) => op.group)), step);
  find('button').onclick = () => view.reset();
  if (edges) find('input').onchange = (e) => { view.allEdges = e.target.checked; view.draw(); };
}

function drawAll() { Object.values(steps).forEach((step) => step.draw()); }
function setTheme(theme) { document.documentElement.dataset.theme = theme; drawAll(); }
const dark = matchMedia('(prefers-color-scheme: dark)');
$('theme').onclick = () => setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
dark.addEventListener('change', () => setTheme(dark.matches ? 'dark' : 'light'));
document.addEventListener('keydown', (e) => { if (e.key === 'Escape') Object.values(steps).forEach((step) => step.choose(null)); });

for (const picture of data.pictures) (picture.kind === 'memory' ? memoryPicture : timelinePicture)(picture);
setTheme(location.hash === '#dark' || (location.hash !== '#light' && dark.matches) ? 'dark' : 'light');
