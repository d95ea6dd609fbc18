// What all drawings share: sharp pixels, the page's colours, and redrawing when either changes.

// Fits a canvas to its box and returns its context in CSS pixels.
export function fit(canvas, height = canvas.clientHeight) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return {context, width, height};
}

let palette = null;
export function colours() {
  if (palette === null) {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const glow = of('--glow');
    palette = {
      accent: of('--accent'), ink: of('--ink'), soft: of('--soft'), line: of('--line'),
      faint: of('--faint'), paper: of('--paper'), glow: (alpha) => `rgb(${glow} / ${alpha})`,
    };
  }
  return palette;
}

const redraws = new Set();
export function onRedraw(draw) {
  redraws.add(draw);
}
const redraw = () => {
  palette = null;
  for (const draw of redraws) draw();
};
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
new ResizeObserver(redraw).observe(document.documentElement);

export const isCalm = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

const tip = document.getElementById('tip');
// Shows `lines` near a point of the window; the first is the title, a last one with `quote` a text.
export function showTip(x, y, lines, quote = '') {
  tip.replaceChildren();
  lines.forEach((line, i) => {
    const element = document.createElement(i === 0 ? 'strong' : 'div');
    element.textContent = line;
    tip.append(element);
  });
  if (quote !== '') {
    const element = document.createElement('q');
    element.textContent = quote;
    tip.append(element);
  }
  tip.hidden = false;
  const left = Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = y + 18 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? y + 18 : y - tip.offsetHeight - 12}px`;
}
export function hideTip() {
  tip.hidden = true;
}
