// The last second of streams, slots and copies, as the pictures in docs/architecture.md have it.
import {colours, fit, hideTip, onRedraw, showTip} from './canvas.js';
import {json} from './api.js';

const canvas = document.getElementById('timeline');
const note = document.getElementById('timeline-note');
const kRow = 18;
const kBar = 12;
const kLabel = 68;
const kAxis = 18;

let streams = [];
let begin = 0;   // microseconds
let length = 1;
const kLength = 1e6;

// Attention is what everything else is for; then copies; then the rest.
function shade(op, c) {
  if (/attend|attention/.test(op)) return c.accent;
  if (/copy|gather|load|write/.test(op)) return c.glow(.55);
  if (/matmul|qkv|mlp|linear/.test(op)) return c.glow(.32);
  return c.glow(.18);
}

function orderOf(name) {
  if (name === 'engine') return 0;
  if (name === 'compute') return 1;
  if (name === 'write-back') return 2;
  const slot = /^slot (\d+)$/.exec(name);
  return slot ? 3 + Number(slot[1]) : 1000;
}

function draw() {
  if (canvas.hidden || streams.length === 0) return;
  const height = streams.length * kRow + kAxis;
  canvas.style.height = `${height}px`;
  const {context, width} = fit(canvas, height);
  const c = colours();
  const room = width - kLabel;
  context.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  context.textBaseline = 'middle';
  streams.forEach((stream, row) => {
    const y = row * kRow;
    context.fillStyle = c.soft;
    context.textAlign = 'left';
    context.fillText(stream.name, 0, y + kBar / 2 + 1, kLabel - 6);
    context.fillStyle = c.faint;
    context.fillRect(kLabel, y, room, kBar);
    for (const [op, at, duration] of stream.spans) {
      const from = Math.max(at - begin, 0), to = Math.min(at + duration - begin, length);
      if (to <= from) continue;
      context.fillStyle = shade(stream.ops[op], c);
      context.fillRect(kLabel + from / length * room, y, Math.max(.6, (to - from) / length * room), kBar);
    }
  });
  context.fillStyle = c.soft;
  context.textBaseline = 'bottom';
  context.textAlign = 'left';
  context.fillText('0', kLabel, height);
  context.textAlign = 'right';
  context.fillText(`${Math.round(length / 1000)} ms`, width, height);
}

async function fetchSpans() {
  const answer = await json('/sluice/timeline?ms=2000');
  streams = answer.streams.sort((a, b) => orderOf(a.name) - orderOf(b.name) ||
      a.name.localeCompare(b.name));
  // The second before the last step ended; copies for this page come after it.
  const last = streams.find((s) => s.name === 'engine')?.spans.at(-1);
  const end = last ? last[1] + last[2] : 1;
  length = Math.max(1, Math.min(end, kLength));
  begin = end - length;
  canvas.hidden = last === undefined;
  note.textContent = canvas.hidden ? 'Nothing has run lately.' : '';
  draw();
}

canvas.addEventListener('pointermove', (event) => {
  const at = canvas.getBoundingClientRect();
  const stream = streams[Math.floor((event.clientY - at.top) / kRow)];
  const us = begin + (event.clientX - at.left - kLabel) / (at.width - kLabel) * length;
  const slack = length / (at.width - kLabel);
  const span = stream?.spans.find(([, from, d]) => us >= from - slack && us <= from + d + slack);
  if (!span) return hideTip();
  showTip(event.clientX, event.clientY, [stream.ops[span[0]], `${stream.name}, ${span[2] < 1000
      ? `${Math.round(span[2])} µs` : `${(span[2] / 1000).toFixed(1)} ms`}`]);
});
canvas.addEventListener('pointerleave', hideTip);
onRedraw(draw);

// `steps`: the engine's count, which tells whether there is anything new.
let lastSteps = -1, nextTime = 0, isOn = false;
export function startTimeline(on) {
  isOn = on;
  if (!on) note.textContent = 'Start the server with --timeline-ring to see its streams here.';
}
export function followTimeline(steps) {
  const now = performance.now();
  if (!isOn || steps === lastSteps || document.hidden) return;
  clearTimeout(followTimeline.later);
  // Once more when it is quiet, for the end of the work.
  followTimeline.later = setTimeout(() => fetchSpans().catch(() => {}), 600);
  if (now < nextTime) return;
  lastSteps = steps;
  nextTime = now + 1000;
  fetchSpans().catch(() => {});
}
