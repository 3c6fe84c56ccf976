// ---- charts ----

const logTicks = (low, high) => {
  const all = [],
    every = Math.max(1, Math.ceil((high - low) / 6));
  for (let e = Math.ceil(low); e <= high; e++)
    if ((e - Math.ceil(low)) % every === 0) all.push(e);
  return all;
};
const power = e => e === 0 ? '1' : '1e' + e;

// series: [{name, values, css}], each by position; a logarithmic axis with its unit, and a dashed limit.
function lines(parent, title, unit, series, limit) {
  el(parent, 'h3', title);
  const w = Math.max(240, Math.min(parent.clientWidth || 560, 620)),
    h = 184,
    left = 46,
    top = 22,
    bottom = 34,
    n = series[0].values.length;
  const finite = series.flatMap(s => s.values).filter(v => v > 0 && v < Infinity).map(Math.log10);
  if (!finite.length) return el(parent, 'p', series.some(s => s.values.some(v => v === Infinity)) ? 'not finite' :
    'equal in every bit', { class: 'note' });
  let low = Math.floor(Math.min(...finite, limit ? Math.log10(limit) : Infinity)),
    high = Math.ceil(Math.max(...finite, limit ? Math.log10(limit) : -Infinity));
  if (low === high) high++;
  const chart = svg(parent, 'svg', { width: w, height: h, role: 'img', 'aria-label': title });
  const x = i => left + (n === 1 ? .5 : i / (n - 1)) * (w - left - 12),
    y = v => top + (high - Math.max(low, Math.min(high, Math.log10(v)))) / (high - low) * (h - bottom - top);
  svg(chart, 'path', { d: `M${left} ${top}V${h - bottom}H${w - 12}`, class: 'axis' });
  for (const e of logTicks(low, high)) svg(chart, 'text', { x: left - 5, y: y(10 ** e) + 4, 'text-anchor': 'end' },
    power(e));
  const every = Math.ceil(n / 8);
  for (let i = 0; i < n; i += every) svg(chart, 'text', { x: x(i), y: h - bottom + 14, 'text-anchor': 'middle' }, i);
  svg(chart, 'text', { x: (left + w) / 2, y: h - 4, 'text-anchor': 'middle' }, 'position');
  svg(chart, 'text', { x: 4, y: 10 }, unit);
  if (limit) svg(chart, 'path', { d: `M${left} ${y(limit)}H${w - 12}`, class: 'limit' });
  for (const s of series) {
    const points = s.values.map((v, i) => v > 0 ? `${x(i).toFixed(1)},${y(v).toFixed(1)}` : null);
    let d = '';
    points.forEach((p, i) => { if (p) d += (points[i - 1] ? 'L' : 'M') + p; });
    svg(chart, 'path', { d, class: s.css });
    points.forEach((p, i) => {
      if (!p) return;
      const dot = svg(chart, 'circle', { cx: p.split(',')[0], cy: p.split(',')[1], r: n > 80 ? 1.5 : 3,
        class: 'bar' + (limit && !(s.values[i] <= limit) ? ' over' : '') });
      svg(dot, 'title', {}, `${s.name}, position ${i}: ${short(s.values[i])}`);
    });
  }
  return chart;
}

const BINS = ['0', '1', ...Array.from({ length: 22 }, (_, i) => '2^' + (i + 1)), '2^23', '2^24+'];

function histogram(parent, counted, bounded) {
  const fill = list => Array.from({ length: BINS.length }, (_, i) => list[i] || 0),
    counts = fill(counted),
    bounds = fill(bounded);
  el(parent, 'h3', 'How far off, and how far rounding may go');
  el(parent, 'p',
    'Elements by |candidate − replayed| in units in the last place (bars), and by the bound on rounding τ (outline).', { class: 'note' }
    );
  const last = Math.max(...[...counts.keys()].filter(i => counts[i] || bounds[i]), 4),
    w = Math.max(240, Math.min(parent.clientWidth || 560, 620)),
    h = 184,
    left = 46,
    top = 22,
    bottom = 34;
  const most = Math.max(...counts, ...bounds),
    high = Math.ceil(Math.log10(most + 1)) || 1,
    chart = svg(parent, 'svg', { width: w, height: h, role: 'img', 'aria-label': 'histogram in ulp' });
  const step = (w - left - 12) / (last + 1),
    y = c => c ? top + (1 - Math.log10(c + 1) / high) * (h - bottom - top) : h - bottom;
  const over = bounds.findLastIndex(b => b > 0);
  svg(chart, 'path', { d: `M${left} ${top}V${h - bottom}H${w - 12}`, class: 'axis' });
  for (let e = 0; e <= high; e++) svg(chart, 'text', { x: left - 5, y: y(10 ** e) + 4, 'text-anchor': 'end' }, power(
  e));
  const every = Math.ceil(38 / step);
  for (let i = 0; i <= last; i++) {
    const bar = svg(chart, 'rect', { x: left + i * step + 1, y: y(counts[i]), width: Math.max(1, step - 2), height: h -
        bottom - y(counts[i]), class: 'bar' + (i > over ? ' over' : '') });
    svg(bar, 'title', {}, `up to ${BINS[i]} ulp: ${counts[i]} elements; bound: ${bounds[i]}`);
    if (bounds[i]) svg(chart, 'rect', { x: left + i * step + 1, y: y(bounds[i]), width: Math.max(1, step - 2),
      height: h - bottom - y(bounds[i]), class: 'bar bound' });
    if (i % every === 0) svg(chart, 'text', { x: left + (i + .5) * step, y: h - bottom + 14, 'text-anchor': 'middle' },
      BINS[i]);
  }
  svg(chart, 'text', { x: (left + w) / 2, y: h - 4, 'text-anchor': 'middle' }, 'ulp of binary32, up to');
  svg(chart, 'text', { x: 4, y: 10 }, 'elements');
}

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const mix = (share, colour) => `color-mix(in srgb, ${colour} ${Math.round(100 * share)}%, ${css('--card')})`;

// A grid of numbers as rectangles: value(row, column) → {share 0…1, over, tip} or null.
function grid(parent, rows, columns, rowName, columnName, value, colour) {
  const w = Math.min(parent.clientWidth || 560, 620),
    left = 46,
    cell = Math.max(2, Math.min(22, Math.floor((w - left - 6) / columns))),
    gap = cell > 6 ? 1 : 0;
  const chart = svg(parent, 'svg', { width: left + columns * cell + 2, height: rows * cell + 30,
  role: 'img', 'aria-label': `${rowName} by ${columnName}` });
  const every = Math.ceil(12 / cell),
    everyColumn = Math.ceil(26 / cell);
  for (let r = 0; r < rows; r++) {
    if (r % every === 0) svg(chart, 'text', { x: left - 5, y: r * cell + cell / 2 + 4, 'text-anchor': 'end' }, r);
    for (let c = 0; c < columns; c++) {
      const v = value(r, c);
      if (!v) continue;
      const box = svg(chart, 'rect', { x: left + c * cell, y: r * cell, width: cell - gap, height: cell - gap });
      box.style.fill = mix(v.share, v.colour || colour);
      svg(box, 'title', {}, v.tip);
    }
  }
  for (let c = 0; c < columns; c += everyColumn) svg(chart, 'text', { x: left + c * cell + cell / 2, y: rows * cell +
      13, 'text-anchor': 'middle' }, c);
  svg(chart, 'text', { x: left, y: rows * cell + 27 }, `${rowName} (down) by ${columnName} (across)`);
}
