// ---- attention ----

let head = 0;

function drawAttention() {
  const a = measured.attention,
    box = $('attention');
  if (!a && !measured.entropy) return box.remove();
  box.replaceChildren();
  el(box, 'h2', 'Attention');
  if (a) {
    el(box, 'p',
      `Weights of layer ${a.layer}${a.beyond ? ', the first with a tensor that is wrong' : ''}: a row is a query's position, a column a key's. ` +
      'Darker is more weight.', { class: 'note' });
    const pick = el(el(box, 'label', 'head '), 'select', null, { 'aria-label': 'head' });
    for (let h = 0; h < a.n_head; h++) el(pick, 'option', h, { value: h });
    pick.value = head;
    pick.onchange = () => { head = +pick.value;
      drawAttention();
      $('attention').querySelector('select').focus(); };
    const row = el(box, 'div', null, { class: 'columns' });
    row.style.gridTemplateColumns = 'repeat(auto-fit, minmax(min(100%, 220px), 1fr))';
    const bytes = a.bytes || (a.bytes = a.weights.map(t => t ? Uint8Array.from(atob(t), c => c.charCodeAt(0)) : null)),
      each = a.n_pos * (a.n_pos + 1) / 2;
    const at = (side, q, k) => bytes[side] ? bytes[side][head * each + q * (q + 1) / 2 + k] / 255 : 0;
    const show = (title, colour, value) => {
      const part = el(row, 'div');
      el(part, 'h3', title);
      const canvas = el(part, 'canvas', null, { width: a.n_pos, height: a.n_pos,
        role: 'img', 'aria-label': `${title}, head ${head}` }),
        pen = canvas.getContext('2d');
      canvas.style.width = Math.min(part.clientWidth || 260, Math.max(160, a.n_pos * Math.ceil(200 / a.n_pos))) +
      'px';
      for (let q = 0; q < a.n_pos; q++)
        for (let k = 0; k <= q; k++) {
          pen.globalAlpha = Math.min(1, Math.abs(value(q, k)));
          pen.fillStyle = colour;
          pen.fillRect(k, q, 1, 1);
        }
      canvas.onmousemove = e => {
        const r = canvas.getBoundingClientRect(),
          k = Math.floor((e.clientX - r.left) / r.width * a.n_pos),
          q = Math.floor((e.clientY - r.top) / r.height * a.n_pos);
        canvas.title = k <= q ?
          `query ${q}, key ${k}: reference ${at(0, q, k).toFixed(3)}, candidate ${at(1, q, k).toFixed(3)}` : '';
      };
    };
    if (bytes[0]) show('reference', css('--ref'), (q, k) => at(0, q, k));
    if (bytes[1]) show('candidate', css('--cand'), (q, k) => at(1, q, k));
    let most = 0;
    for (let q = 0; q < a.n_pos; q++)
      for (let k = 0; k <= q; k++) most = Math.max(most, Math.abs(at(1, q, k) - at(0, q, k)));
    if (bytes[0] && bytes[1]) show(`difference, at most ${short(most)}`, css('--ink'), (q, k) => most ? (at(1, q, k) -
      at(0, q, k)) / most : 0);
  }
  const e = measured.entropy;
  if (!e) return;
  el(box, 'h3', 'Entropy of each head');
  el(box, 'p', 'Mean over positions, in nats; near 0 a head looks at one token alone.', { class: 'note' });
  const row = el(box, 'div', null, { class: 'columns' }),
    most = Math.max(...e.flat(2).filter(v => v !== null), .01);
  e.forEach((layers, side) => {
    if (!layers.some(l => l)) return;
    const part = el(row, 'div');
    el(part, 'h3', side ? 'candidate' : 'reference');
    grid(part, layers.length, measured.n_head, 'layer', 'head', (l, h) => layers[l] && {
      share: .08 + .92 * layers[l][h] / most,
      tip: `layer ${l}, head ${h}: reference ${e[0][l] ? short(e[0][l][h]) : '—'}, candidate ${e[1][l] ? short(e[1][l][h]) : '—'} nats`
    }, css(side ? '--cand' : '--ref'));
  });
}
