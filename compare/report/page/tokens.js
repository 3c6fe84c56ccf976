// ---- tokens ----

const tokenText = id => measured.texts[id];

function token(parent, id) {
  el(parent, 'span', tokenText(id) === undefined ? String(id) : tokenText(id), { class: 'token mono', title: 'token ' +
      id });
}

function shares(cell, top, side) {
  for (const [id, p] of top.slice(0, 3)) {
    const line = el(cell, 'div');
    line.style.whiteSpace = 'nowrap';
    el(line, 'span', '', { class: 'share ' + (side ? 'of-cand' : 'of-ref') }).style.width = Math.max(1, 60 * p) + 'px';
    token(line, id);
    line.append(' ' + short(p));
  }
}

function drawTokens() {
  const box = $('tokens'),
    known = measured.logits.some(l => l);
  if (!measured.tokens && !known) return box.remove();
  box.replaceChildren();
  el(box, 'h2', 'Tokens');
  const s = report.measures && report.measures.logits;
  if (s) el(box, 'p',
    `Mean KL divergence ${short(number(s.mean_kl))} nats, at most ${short(number(s.largest_kl))} at position ${s.largest_kl_position}; ` +
    `the same best token at ${s.same_best_token} of ${s.positions} positions; its mean probability ${short(number(s.reference_probability))} → ${short(number(s.candidate_probability))}.`, { class: 'note' }
    );
  if (known) lines(box, 'KL divergence by position', 'nats', [{ name: 'KL', values: measured.logits.map(l => l ? l.kl :
      -1), css: 'line-cand' }]);
  const table = el(el(box, 'div', null, { class: 'scroll' }), 'table'),
    headRow = el(el(table, 'thead'), 'tr');
  ['pos', 'fed', 'reference: next token', 'candidate: next token', 'KL', 'rank'].forEach((t, i) => el(headRow, 'th', t,
    i === 0 || i > 3 ? { class: 'n' } : {}));
  const body = el(table, 'tbody'),
    parts = measured.logits.map((l, p) => [p, l]),
    MOST = 16;
  const shown = parts.filter(([, l]) => l && l.top[0][0][0] !== l.top[1][0][0]).concat(parts).filter((x, i, all) => all
    .findIndex(y => y[0] === x[0]) === i).slice(0, MOST).sort((a, b) => a[0] - b[0]);
  for (const [p, l] of shown) {
    const other = l && l.top[0][0][0] !== l.top[1][0][0],
      row = el(body, 'tr');
    el(row, 'td', p, { class: 'n' });
    const fed = el(row, 'td');
    if (measured.tokens) token(fed, measured.tokens[p]);
    const cells = [el(row, 'td'), el(row, 'td')];
    if (l)[0, 1].forEach(side => shares(cells[side], l.top[side], side));
    el(row, 'td', l ? short(l.kl) : '—', { class: 'n' });
    el(row, 'td', l ? (other ? `1 → ${l.rank} ✕` : '1') : '—', { class: 'n',
      title: "rank of the reference's best token in the candidate" });
  }
  if (parts.length > shown.length) el(box, 'p',
    `${parts.length - shown.length} more positions are not listed; those with another best token come first.`, { class: 'note' }
    );
}
