// ---- one node ----

function valuesTable(parent, n) {
  const v = n.values;
  if (!v) return;
  el(parent, 'h3', `Values around the worst element, position ${v.pos}`);
  const table = el(el(parent, 'div', null, { class: 'scroll' }), 'table', null, { class: 'values' }),
    head = el(el(table, 'thead'), 'tr');
  ['element', 'reference', 'replayed', 'candidate', '|Δ| / τ'].forEach(t => el(head, 'th', t, { class: 'n' }));
  const body = el(table, 'tbody'),
    own = report.replay.of_reference ? v.ref : v.cand;
  v.cand.forEach((c, i) => {
    const row = el(body, 'tr', null, v.first + i === v.worst ? { class: 'mark' } : {});
    el(row, 'td', v.first + i, { class: 'n' });
    for (const x of [v.ref[i], v.rep[i], c]) el(row, 'td', x === null ? '—' : String(x), { class: 'n mono' });
    el(row, 'td', short(Math.abs(own[i] - v.rep[i]) / v.tau[i]), { class: 'n' });
  });
}

function drawNode() {
  const n = chosen,
    box = $('node');
  box.replaceChildren();
  el(box, 'h2', n.name);
  el(box, 'p',
    `${n.op}${n.layer >= 0 ? ', layer ' + n.layer : ''}: ${KINDS[n.kind]}` + (n.z < 0 ? '' : `. Largest z ${zText(n.z)} (noise would be z ≤ 1)`) +
    (n.nmse === undefined || n.nmse === null ? '' :
      `; NMSE ${short(n.nmse)}, cosine ${n.cosine === null ? '—' : Number(n.cosine.toPrecision(7))}`) +
    '.', { class: 'note' });
  if (n.record) el(box, 'p', `${n.record.reader} follows from what it should be, so the engine is right and its dump is not` + (n.record.holds ?
    `: this has the values of ${n.record.holds}.` : n.record.summary ? `: what stands here looks like: ${n.record.summary}.` : '.') +
    ' Recorded late (its buffer was used again), at another stage of its op, or under another name?', { class: 'note' });
  if (n.z < 0) return;
  const columns = el(box, 'div', null, { class: 'columns' }),
    left = el(columns, 'div'),
    right = el(columns, 'div');
  valuesTable(left, n);
  const beyond = n.pos.map((z, p) => z === Infinity ? p : -1).filter(p => p >= 0);
  if (beyond.length && !n.pos.some(z => z > 0 && z < Infinity)) {
    el(left, 'h3', 'Error of this op by position');
    el(left, 'p', `No rounding is allowed here, and ${beyond.length} of ${n.pos.length} positions differ: ${beyond[0]} first, ${beyond[beyond.length - 1]} last.`,
      { class: 'note' });
  } else lines(left, 'Error of this op by position', '|Δ|/τ', [{ name: 'z', values: n.pos, css: n.z <= 1 ? 'line-noise' : 'line-cand' }], 1);
  if (n.rel && n.rel.some(v => v >= 0)) lines(right, 'Distance from the reference by position', '‖c − r‖ / ‖r‖', [
  { name: 'relative error', values: n.rel, css: 'line-ref' }]);
  if (n.ulp) histogram(right, n.ulp, n.tau);
  const most = Math.max(10, ...(n.map || []).filter(z => z < Infinity));
  const shade = z => z < 0 ? null : { share: z <= 1 ? .18 : z === Infinity ? 1 : .3 + .7 * Math.log10(z) / Math.log10(
      most), colour: css(z <= 1 ? '--noise' : '--wrong') };
  if (n.map && n.head.length) {
    el(left, 'h3', 'Error by head and position');
    grid(left, n.head.length, n.pos.length, 'head', 'position', (r, c) => {
      const z = n.map[c * n.head.length + r],
        s = shade(z);
      return s && { ...s, tip: `head ${r}, position ${c}: z ${short(z)}` };
    });
  } else if (n.head.length > 1) {
    el(left, 'h3', 'Largest z of each head');
    el(left, 'p', n.head.map((z, i) => `${i}: ${zText(z)}`).join(' · '), { class: 'note' });
  }
}

function choose(n) {
  chosen = n;
  drawMap();
  drawNode();
}
