function drawAll() {
  drawMap();
  drawNode();
  drawLayers();
  drawAttention();
  drawTokens();
}
for (const id of ['node', 'explanations', 'layers', 'attention', 'tokens', 'health', 'weights']) el($('parts'),
  'section', null, { id });
drawLegend();
drawAll();
drawHealth();
drawWeights();
drawExplanations();
let pause = 0,
  width = innerWidth;
addEventListener('resize', () => {
  if (innerWidth === width) return;
  width = innerWidth;
  clearTimeout(pause);
  pause = setTimeout(drawAll, 120);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
