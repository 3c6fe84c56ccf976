'use strict';
// Draws the page from `report` (the verdict as --json prints it), `nodes`, `first` and `measured`. No library, no network.
const NS = 'http://www.w3.org/2000/svg';
const $ = id => document.getElementById(id);
const el = (parent, tag, text, attributes) => {
  const e = document.createElement(tag);
  if (text !== undefined && text !== null) e.textContent = text;
  for (const k in attributes || {}) e.setAttribute(k, attributes[k]);
  if (parent) parent.appendChild(e);
  return e;
};
const svg = (parent, tag, attributes, text) => {
  const e = document.createElementNS(NS, tag);
  for (const k in attributes || {}) e.setAttribute(k, attributes[k]);
  if (tag === 'svg') e.setAttribute('viewBox', `0 0 ${attributes.width} ${attributes.height}`); // a narrower window scales it
  if (text !== undefined) e.textContent = text;
  return parent.appendChild(e);
};
const short = x => x === null || x === undefined || Number.isNaN(x) ? '—' : x === Infinity ? 'inf' : x === 0 ? '0' :
  Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3 ? Number(x.toPrecision(3)).toExponential() : String(Number(x.toPrecision(
  3)));
const zText = z => z < 0 ? 'not judged' : short(z);
const number = o => o === null ? null : o.value === null ? (o.text === 'inf' ? Infinity : NaN) : o.value;

// ---- what each node is, in words and in a kind that is not a colour alone ----

const KINDS = {
  wrong: 'wrong here: its own inputs do not explain it',
  amplified: 'inherited from the bug, and amplified',
  inherited: 'inherited from the bug',
  noise: 'within rounding',
  rounding: 'rounding inherited from before',
  record: 'not recorded as it was used',
  none: 'not recorded or not judged'
};
// What the dump holds in place of a tensor: by the name that stands for its layers, "0…2, 5".
const ofLayer = (layers, layer) => layers.split(',').some(r => {
  const [first, last] = r.split('…').map(Number);
  return layer >= first && layer <= (last === undefined ? first : last);
});
const inLayer = name => name.replace(/^blk\.\d+\./, '');
const recordOf = n => (report.misrecorded || []).find(m => m.node === n.name || (n.layer >= 0 && inLayer(m.node) ===
  inLayer(n.name) && ofLayer(m.layers, n.layer)));

for (let i = 0; i < nodes.length; i++) {
  const n = nodes[i],
    own = n.finding === 'INTRODUCED' || n.finding === 'BOTH';
  n.index = i;
  n.after = own || (n.input || []).some(k => k >= 0 && k < i && nodes[k].after);
  n.record = recordOf(n);
  n.kind = n.record ? 'record' : n.z < 0 ? 'none' : own ? 'wrong' : n.finding === 'AMPLIFIER' ? (n.after ? 'amplified' : 'rounding') :
    n.finding === 'INHERITED' ? (n.after ? 'inherited' : 'rounding') : 'noise';
}

function mark(parent, kind, x, y, wide, high) {
  svg(parent, 'rect', { x, y, width: wide, height: high, rx: high > 10 ? 2 : 0, class: 'cell ' + kind });
  const size = Math.min(wide, high),
    middle = x + wide / 2,
    a = middle - size * .22,
    b = middle + size * .22,
    c = y + high * .28,
    d = y + high * .72;
  if (size < 6) return;
  if (kind === 'wrong') svg(parent, 'path', { d: `M${a} ${c}L${b} ${d}M${b} ${c}L${a} ${d}`, class: 'glyph' });
  if (kind === 'inherited') svg(parent,
  'path', { d: `M${middle - size * .4} ${y + high - 1}L${middle + size * .4} ${y + 1}`, class: 'glyph dark' });
  if (kind === 'amplified') svg(parent, 'path', { d: `M${a} ${d}L${middle} ${c}L${b} ${d}`, class: 'glyph dark' });
  if (kind === 'record') svg(parent, 'text', { x: middle, y: y + high / 2 + size * .25, 'text-anchor': 'middle', style: `font-size:${size * .7}px`,
    class: 'glyph-text' }, '?');
  if (kind === 'rounding') svg(parent, 'circle', { cx: middle, cy: y + high / 2, r: size * .12, class: 'glyph dot' });
}
