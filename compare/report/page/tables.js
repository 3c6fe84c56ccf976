// ---- the run's health, weights, explanations ----

function drawHealth() {
  const h = measured.health,
    box = $('health');
  if (!h || !h.some(side => side.some(p => p))) return box.remove();
  box.replaceChildren();
  el(box, 'h2', 'Health over the run');
  const of = key => h.map((side, s) => ({ name: s ? 'candidate' : 'reference', values: side.map(p => p ? p[key] : -1),
    css: s ? 'line-cand' : 'line-ref' })).filter(s => s.values.some(v => v > 0));
  const columns = el(box, 'div', null, { class: 'columns' });
  [
    ['range', 'Range of the logits', 'max − min'],
    ['top1', 'Probability of the best token', 'share'],
    ['n_kv', 'Length of the K/V cache', 'keys']
  ].forEach(([key, title, unit]) => {
    const series = of(key);
    if (series.length) lines(el(columns, 'div'), title, unit, series);
  });
  const odd = [];
  h.forEach((side, s) => side.forEach((p, i) => {
    const who = s ? 'candidate' : 'reference';
    if (p && p.loop) odd.push(`${who}, position ${i}: the last tokens repeat with period ${p.loop}`);
    if (p && p.range >= 0 && p.range < 1) odd.push(
      `${who}, position ${i}: the logits span ${short(p.range)} only`);
  }));
  el(box, 'p', 'Reference solid, candidate dashed. ' + (odd.length ? odd.slice(0, 6).join('; ') :
    'No loops, no flat logits.'), { class: 'note' });
}

function drawWeights() {
  const w = report.weights,
    box = $('weights');
  if (!w) return box.remove();
  box.replaceChildren();
  el(box, 'h2', 'Weights');
  el(box, 'p',
  `${w.same} agree with the ${w.against}, ${w.differ} differ, ${w.unknown} not recorded.`, { class: 'note' });
  if (!w.differ) return;
  const table = el(el(box, 'div', null, { class: 'scroll' }), 'table');
  [
    ['first that differs', w.first],
    ['read by', w.read_by],
    ['held', `${w.held.dtype} ${w.held.rows} × ${w.held.columns === null ? '?' : w.held.columns}`],
    ['expected', `${w.expected.dtype} ${w.expected.rows} × ${w.expected.columns}`],
    ['rows that differ', `${w.rows_differ}, from row ${w.first_row} on`],
    ['holds', w.holds],
    ['also', w.others],
    ['the bug', w.summary || w.reason]
  ].forEach(([k, v]) => {
    if (!v) return;
    const row = el(table, 'tr');
    el(row, 'th', k);
    el(row, 'td', v);
  });
}

function drawExplanations() {
  const e = report.explanation,
    box = $('explanations');
  if (!e) return box.remove();
  box.replaceChildren();
  el(box, 'h2', 'Explanations tried');
  el(box, 'p', `${e.tried} bugs were tried on the candidate's own inputs; ${e.without_effect} change nothing there` +
    (e.untried ? `, ${e.untried} read tensors that were not recorded` : '') +
    '. Residual: what is left when the op is computed with that bug; z ≤ 1 is rounding.' + (e.reason ?
      ' Not named: ' + e.reason + '.' : ''), { class: 'note' });
  const table = el(el(box, 'div', null, { class: 'scroll' }), 'table'),
    headRow = el(el(table, 'thead'), 'tr');
  ['', 'what the engine does', 'name', 'residual z'].forEach((t, i) => el(headRow, 'th', t, i === 3 ? { class: 'n' } :
    {}));
  const body = el(table, 'tbody'),
    add = (what, summary, name, z) => {
      const row = el(body, 'tr', null, what === 'named' ? { class: 'mark' } : {});
      el(row, 'td', what);
      el(row, 'td', summary);
      el(row, 'td', name, { class: 'mono' });
      el(row, 'td', short(z), { class: 'n' });
    };
  e.remaining.forEach((f, i) => add(e.name ? (i ? 'the same here' : 'named') : 'possible', f.summary, f.name, number(f
    .z)));
  if (e.runner_up) add('next best', e.runner_up_summary, e.runner_up, number(e.runner_up_z));
  (report.causes || []).slice(1).forEach(c => add('another bug', `${c.node}: ${c.summary || 'not named'}`, c.name || '',
    null));
}

function drawLayers() {
  const box = $('layers'),
    rows = report.measures ? report.measures.layers : [];
  if (!rows.length) return box.remove();
  box.replaceChildren();
  el(box, 'h2', 'Layer by layer');
  el(box, 'p', 'Largest z in the layer; NMSE and cosine of its last tensor against the reference.', { class: 'note' });
  const table = el(el(box, 'div', null, { class: 'scroll' }), 'table'),
    headRow = el(el(table, 'thead'), 'tr');
  ['layer', 'z', 'NMSE', '1 − cosine', 'after'].forEach((t, i) => el(headRow, 'th', t, i && i < 4 ? { class: 'n' } :
    {}));
  const body = el(table, 'tbody');
  for (const r of rows) {
    const row = el(body, 'tr', null, r.introduced ? { class: 'mark' } : {}),
      cosine = number(r.cosine);
    el(row, 'td', (r.layer < 0 ? '' : r.layer) + (r.introduced ? ' ✕' : ''));
    for (const v of [number(r.z), number(r.nmse), cosine === null ? null : Math.max(0, 1 - cosine)]) el(row, 'td', short(
    v), { class: 'n' });
    el(row, 'td', r.node, { class: 'mono' });
  }
}
