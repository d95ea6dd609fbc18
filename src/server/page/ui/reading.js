// The document as a strip: it fills while the prompt is computed, and lights up where decode reads.
import {colours, fit, isCalm, onRedraw} from './canvas.js';
import {count} from './format.js';

const canvas = document.getElementById('strip');
const reader = document.getElementById('reader');
const readerText = document.getElementById('reader-text');
const readerWhere = document.getElementById('reader-where');

const kBand = 26;       // height of the document itself
const kAxis = 14;       // below it
const kPageTokens = 16; // until the server says how long pages are
const kReader = 640;    // characters of the excerpt
const kBlur = 1.4;      // pixels

let doc = null;  // {text, tokens, places}
let pageTokens = kPageTokens;
let heat = new Float64Array(0);  // reads of each page of the document
let shown = new Float64Array(0); // what is drawn, on its way to `heat`
let progress = {done: 0, cached: 0};
let filled = 0;   // what is drawn of progress.done
let top = 0;      // reads of the full height
let cursor = -1;  // a page, or -1
let frame = 0;
let isSeeking = false;  // the place that is shown is the hottest, until somebody chooses one

function numPages() {
  return doc ? Math.max(1, Math.ceil(doc.tokens / pageTokens)) : 0;
}

function resize(tokens) {
  pageTokens = tokens || kPageTokens;
  heat = new Float64Array(numPages());
  shown = new Float64Array(numPages());
}

export function setDocument(next) {
  doc = next;
  progress = {done: 0, cached: 0};
  filled = 0;
  cursor = -1;
  reader.hidden = true;
  resize(pageTokens);
  draw();
}

export function setProgress(done, cached) {
  if (!doc) return;
  progress = {done: Math.min(done, doc.tokens), cached: Math.min(cached, doc.tokens)};
  wake();
}

// A new answer begins.
export function clearReads() {
  heat.fill(0);
  top = 0;
  cursor = -1;
  isSeeking = false;
  canvas.classList.remove('lit');
  reader.hidden = true;
  wake();
}

// `reads`: of a view; `indexOf`: a block's place in the document, or undefined.
export function addReads(reads, blockTokens, indexOf) {
  if (!doc || reads.page_tokens === 0) return;
  if (reads.page_tokens !== pageTokens) resize(reads.page_tokens);
  const pagesPerBlock = blockTokens / pageTokens;
  let changed = false;
  for (const [id, ...pages] of reads.blocks) {
    const index = indexOf(id);
    if (index === undefined) continue;
    pages.forEach((reads, i) => {
      const page = index * pagesPerBlock + i;
      if (page < heat.length && reads > 0) {
        heat[page] += reads;
        changed = true;
      }
    });
  }
  if (!changed) return;
  top = findTop();
  canvas.classList.add('lit');
  wake();
  if (isSeeking) showHottest();
}

function showHottest() {
  const page = hottestPage();
  if (page >= 0) showPage(page);
}

// An answer is whole: shows where it was read most, and again if later views have more reads.
export function seek() {
  isSeeking = true;
  showHottest();
}

// `isFlat`: the server does not say what decode reads, so the strip never lights up.
export function sayWhyFlat(isFlat) {
  document.getElementById('flat').hidden = !isFlat;
}

export const hasReads = () => heat.some((h) => h > 0);

// Sum of all reads, for tests and titles.
export const totalReads = () => heat.reduce((sum, h) => sum + h, 0);

// How far each page stands out from those on both sides. Heads that look at what is near read the
// end of a document, the more the nearer; what a question is about stands alone.
function standOut() {
  const reach = Math.max(4, Math.round(heat.length * .02));
  const most = (values) => values.length === 0 ? Infinity
      : Float64Array.from(values).sort()[Math.floor(values.length * .8)];
  // Pages after it are always read, and not counted.
  const last = heat.findLastIndex((h) => h > 0);
  return heat.map((h, page) => h === 0 ? 0
      : h - Math.max(page === 0 ? 0 : most(heat.slice(Math.max(0, page - reach), page)),
                     most(heat.slice(page + 2, Math.min(last + 1, page + reach + 2)))));
}

export function hottestPage() {
  let best = -1;
  const scores = standOut();
  scores.forEach((score, page) => {
    if (score > 0 && (best < 0 || score > scores[best])) best = page;
  });
  return best;
}

// The full height is that of the page that stands out most; what exceeds it is cut off.
function findTop() {
  const hot = hottestPage();
  return hot < 0 ? Math.max(...heat, 0) : heat[hot];
}

function wake() {
  if (frame === 0) frame = requestAnimationFrame(step);
}

function step() {
  frame = 0;
  const share = isCalm() ? 1 : .16;
  let moves = false;
  const ease = (from, to) => {
    const next = from + (to - from) * share;
    if (Math.abs(to - next) < Math.max(1e-3, Math.abs(to) * 1e-3)) return to;
    moves = true;
    return next;
  };
  filled = ease(filled, progress.done);
  for (let i = 0; i < heat.length; ++i) shown[i] = ease(shown[i], heat[i]);
  draw();
  if (moves) wake();
}

// Heights per pixel column: the hottest page of each, spread a little so that one page is seen.
function columnsOf(width) {
  const columns = new Float64Array(width);
  if (top <= 0) return columns;
  for (let page = 0; page < shown.length; ++page) {
    const value = Math.min(1, shown[page] / top);
    if (value <= 0) continue;
    const begin = page / shown.length * width;
    const end = (page + 1) / shown.length * width;
    for (let x = Math.max(0, Math.floor(begin) - 4); x < Math.min(width, Math.ceil(end) + 4); ++x) {
      const away = Math.max(0, begin - x - .5, x + .5 - end);
      columns[x] = Math.max(columns[x], value * Math.exp(-away * away / (2 * kBlur * kBlur)));
    }
  }
  return columns;
}

function draw() {
  if (!doc || canvas.clientWidth === 0) return;
  const {context, width, height} = fit(canvas);
  const c = colours();
  const band = height - kBand - kAxis;
  const perToken = width / doc.tokens;
  // The document: computed parts are tinted, those of the cache a little more.
  context.beginPath();
  context.roundRect(0, band, width, kBand, 5);
  context.save();
  context.clip();
  context.fillStyle = c.faint;
  context.fillRect(0, band, width, kBand);
  context.fillStyle = c.glow(.16);
  context.fillRect(0, band, filled * perToken, kBand);
  context.fillStyle = c.glow(.12);
  context.fillRect(0, band, Math.min(progress.cached, filled) * perToken, kBand);
  if (filled > 0 && filled < doc.tokens) {
    context.fillStyle = c.accent;
    context.fillRect(filled * perToken - 2, band, 2, kBand);
  }
  drawHeat(context, width, band, c);
  context.restore();
  drawSpikes(context, width, band, c);
  drawAxis(context, width, height, band, c);
}

function drawHeat(context, width, band, c) {
  columnsOf(Math.ceil(width)).forEach((value, x) => {
    if (value < .02) return;
    context.fillStyle = c.glow((.1 + .9 * value).toFixed(3));
    context.fillRect(x, band, 1, kBand);
  });
}

// A line over the document that rises where it is read.
function drawSpikes(context, width, band, c) {
  const columns = columnsOf(Math.ceil(width));
  if (band < 16 || !columns.some((value) => value > 0)) return;
  const room = band - 6;
  context.beginPath();
  context.moveTo(0, band - 2);
  columns.forEach((value, x) => context.lineTo(x + .5, band - 2 - value * room));
  context.lineTo(width, band - 2);
  context.closePath();
  const gradient = context.createLinearGradient(0, 0, 0, band);
  gradient.addColorStop(0, c.glow(.55));
  gradient.addColorStop(1, c.glow(.06));
  context.fillStyle = gradient;
  context.fill();
  context.strokeStyle = c.accent;
  context.lineWidth = 1.25;
  context.lineJoin = 'round';
  context.stroke();
}

function drawAxis(context, width, height, band, c) {
  context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  context.fillStyle = c.soft;
  context.textBaseline = 'bottom';
  const ticks = width < 480 ? 2 : 4;
  for (let i = 0; i <= ticks; ++i) {
    context.textAlign = i === 0 ? 'left' : i === ticks ? 'right' : 'center';
    context.fillText(count(doc.tokens * i / ticks), width * i / ticks, height + 1);
  }
  if (cursor < 0) return;
  const x = (cursor + .5) / numPages() * width;
  context.strokeStyle = c.ink;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, band + kBand);
  context.stroke();
}

// The text around a page, with its pages shaded as they were read.
export function showPage(page) {
  cursor = Math.max(0, Math.min(numPages() - 1, page));
  const charOf = (p) => doc.places.charOf(Math.min(p * pageTokens, doc.tokens));
  const middle = (charOf(cursor) + charOf(cursor + 1)) / 2;
  let begin = Math.max(0, Math.round(middle - kReader / 2));
  let end = Math.min(doc.text.length, Math.round(middle + kReader / 2));
  const space = doc.text.indexOf(' ', begin);
  if (begin > 0 && space >= 0 && space < begin + 40) begin = space + 1;
  const lastSpace = doc.text.lastIndexOf(' ', end);
  if (end < doc.text.length && lastSpace > end - 40) end = lastSpace;
  readerText.replaceChildren(begin > 0 ? '… ' : '');
  let firstPage = cursor;
  while (firstPage > 0 && charOf(firstPage) > begin) --firstPage;
  for (let p = firstPage; p < numPages() && charOf(p) < end; ++p) {
    const from = Math.max(begin, charOf(p)), to = Math.min(end, charOf(p + 1));
    if (to <= from) continue;
    const part = document.createElement(p === cursor || heat[p] > 0 ? 'mark' : 'span');
    const value = top > 0 ? Math.min(1, heat[p] / top) : 0;
    if (value > .08) part.style.backgroundColor = colours().glow((.05 + .2 * value).toFixed(3));
    if (p === cursor) part.style.boxShadow = `inset 0 -2px ${colours().accent}`;
    part.textContent = doc.text.slice(from, to);
    readerText.append(part);
  }
  if (end < doc.text.length) readerText.append(' …');
  const token = cursor * pageTokens;
  readerWhere.textContent = `Tokens ${count(token)} to ${
      count(Math.min(doc.tokens, token + pageTokens))}, ${
      Math.round(100 * token / doc.tokens)} % into the document` +
      (heat[cursor] > 0 ? `, read ${count(heat[cursor])} times` : '');
  reader.hidden = false;
  canvas.setAttribute('aria-valuenow', String(Math.round(100 * token / doc.tokens)));
  canvas.setAttribute('aria-valuetext', readerWhere.textContent);
  draw();
}

function pageAt(event) {
  const box = canvas.getBoundingClientRect();
  return Math.floor((event.clientX - box.left) / box.width * numPages());
}

// The hottest page near a click: a page is narrower than a finger.
function nearby(page) {
  const reach = Math.ceil(numPages() * 5 / Math.max(1, canvas.clientWidth));
  let best = page;
  for (let p = Math.max(0, page - reach); p <= Math.min(numPages() - 1, page + reach); ++p) {
    if (heat[p] > (heat[best] ?? 0)) best = p;
  }
  return best;
}

canvas.addEventListener('click', (event) => {
  if (!doc) return;
  isSeeking = false;
  showPage(nearby(pageAt(event)));
});
canvas.addEventListener('keydown', (event) => {
  if (!doc) return;
  const hot = hottestPage();
  const steps = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10};
  let page = null;
  if (event.key in steps) page = Math.max(0, cursor) + steps[event.key];
  if (event.key === 'Home') page = 0;
  if (event.key === 'End') page = numPages() - 1;
  if (event.key === 'Enter') page = hot >= 0 ? hot : Math.max(0, cursor);
  if (page === null) return;
  event.preventDefault();
  isSeeking = false;
  showPage(page);
});
onRedraw(draw);
new ResizeObserver(draw).observe(canvas);
