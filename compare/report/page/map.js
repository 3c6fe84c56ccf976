// ---- the map ----

let chosen = nodes.find(n => n.name === first) || nodes.find(n => n.kind === 'wrong' || n.kind === 'record') ||
  nodes.find(n => report.replay && n.name === report.replay.largest_noise_at) || nodes[0];

function drawMap() {
  const box = $('map'),
    columns = [...new Set(nodes.filter(n => n.layer >= 0).map(n => n.column))];
  const layers = [...new Set(nodes.filter(n => n.layer >= 0).map(n => n.layer))],
    outside = nodes.filter(n => n.layer < 0);
  box.replaceChildren();
  const wide = box.clientWidth || 320,
    left = wide > 500 ? 90 : 76,
    step = Math.max(4, Math.min(64, Math.floor((wide - left - 44) / Math.max(1, columns.length))));
  const pitch = Math.max(4, Math.min(step, layers.length > 40 ? 12 : 26)),
    size = step > 9 ? step - 2 : step - 1,
    high = pitch > 9 ? pitch - 2 : pitch - 1;
  const top = step > 9 ? 84 : 8,
    rowsBefore = outside.filter(n => n.index < (nodes.find(m => m.layer >= 0) || { index: 0 }).index);
  const rows = [...rowsBefore.map(n => [n]), ...layers.map(l => columns.map(c => nodes.find(n => n.layer === l && n
      .column === c))),
    ...outside.filter(n => !rowsBefore.includes(n)).map(n => [n])
  ];
  const drawing = svg(box, 'svg', {
    width: left + step * columns.length + 42,
    height: top + rows.length * pitch + 4,
    role: 'group',
    'aria-label': 'every tensor by layer; arrow keys move, the chosen one is described below'
  });
  const upright = step < 20; // slanted labels of narrow columns would cover each other
  if (step > 9) columns.forEach((c, i) => svg(drawing, 'text', { transform: `translate(${left + i * step + size / 2 + (upright ? 3 : 0)} ${
    top - 6}) rotate(${upright ? -90 : -45})`, style: upright ? 'font-size:9.5px' : '' }, c));
  const place = new Map(),
    every = Math.ceil(13 / pitch);
  rows.forEach((row, r) => {
    const layer = row.find(n => n) ? row.find(n => n).layer : -1,
      y = top + r * pitch;
    if (layer >= 0 ? layer % every === 0 : true)
      svg(drawing, 'text', { x: left - 6, y: y + high / 2 + 4, 'text-anchor': 'end' }, layer >= 0 ? (left > 76 ?
        'layer ' : '') + layer : row[0].name.slice(0, left > 76 ? 14 : 11));
    row.forEach((n, c) => {
      if (!n) return;
      const group = svg(drawing, 'g', { 'data-node': n.index }),
        x = left + c * step;
      mark(group, n.kind, x, y, size, high);
      svg(group, 'title', {}, `${n.name}: ${KINDS[n.kind]}, z ${zText(n.z)}`);
      place.set(n, [x, y, r, c]);
    });
  });
  const ring = n => place.has(n) && svg(drawing, 'rect', { x: place.get(n)[0] - 1, y: place.get(n)[1] - 1, width: size +
      2, height: high + 2, rx: 3, class: n === chosen ? 'chosen' : 'first' });
  const begin = nodes.find(n => n.name === first);
  if (begin) ring(begin);
  ring(chosen);
  drawing.onclick = e => {
    const g = e.target.closest('[data-node]');
    if (g) choose(nodes[g.dataset.node]);
  };
  drawing.setAttribute('tabindex', '0');
  drawing.onkeydown = e => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] } [e.key],
      at = place.get(chosen);
    if (!move || !at) return;
    const to = [...place].find(([, p]) => p[2] === at[2] + move[0] && (p[3] === at[3] + move[1] || (move[0] && rows[p[
      2]].length === 1)));
    e.preventDefault();
    if (to) choose(to[0]);
    $('map').querySelector('svg').focus();
  };
}

function drawLegend() {
  for (const kind in KINDS) {
    const count = nodes.filter(n => n.kind === kind).length;
    if (!count) continue;
    const item = el($('legend'), 'li');
    mark(svg(item, 'svg', { width: 15, height: 15 }), kind, .5, .5, 14, 14);
    item.append(`${KINDS[kind]} (${count})`);
  }
}
