// The blocks of KV: a row of cells for each request, for each pin, for each prefix that is kept, and
// for what is free. Each block is one cell; one that several rows hold is drawn in each and counted in the first.
// Cells that are no block of this memory are `extra`: blocks of pins on disk, and what the slots of the ring have.
import {colours, fit, hideTip, onRedraw, showTip} from './canvas.js';
import {bytes, count} from './format.js';

const box = document.getElementById('memory');
const sum = document.getElementById('memory-sum');
const kMaxFreeRows = 6;

const kPlaces = {
  d: 'on the device', h: 'in host memory', k: 'on disk', c: 'being computed', l: 'loading', f: 'free',
};

const rows = new Map();  // by key: {element, canvas, name, detail, cells, ...}
let textOf = () => '';   // of a block of a document that the page has

export function setTextOf(f) {
  textOf = f;
}

// Runs [first id, count, place] to cells. `holders`: how many requests these are.
function cellsOf(runs, held, holders = 1) {
  const cells = [];
  for (const [id, length, place] of runs) {
    for (let i = 0; i < length; ++i) cells.push({id: id + i, place, again: held.has(id + i)});
  }
  for (const cell of cells) {
    if (!held.has(cell.id)) held.set(cell.id, 0);
    held.set(cell.id, held.get(cell.id) + holders);
  }
  return cells;
}

// A gap before each slot but the first; a slot is at least one cell.
function ringRow({slots, kv}) {
  const cells = [];
  let layer = -1;
  slots.forEach((slot, index) => {
    if (index > 0) cells.push({id: -1, place: ' ', extra: true});
    const cell = {id: -1, place: slot.pages ? 'p' : 'e', extra: true, slot: index, layer: slot.layer};
    layer = Math.max(layer, slot.layer);
    for (const id of slot.blocks) cells.push({...cell, id, place: 'd'});
    if (slot.blocks.length === 0) cells.push(cell);
  });
  const now = layer < 0 ? '' : `, layer ${layer}`;
  return {
    key: 'ring',
    name: 'Ring',
    detail: `${count(slots.length)} slots of ${count(kv.slot_blocks)} blocks of one layer${now}`,
    cells,
  };
}

function cellSize(total) {
  if (total <= 400) return 13;
  if (total <= 1500) return 9;
  if (total <= 8000) return 6;
  return 4;
}

export function showMemory(view, nameOf) {
  const {kv} = view;
  const held = new Map();
  const wanted = [];
  for (const sequence of view.sequences) {
    const isDone = sequence.done >= sequence.prompt;
    wanted.push({
      key: `r${sequence.id}`,
      name: nameOf(sequence) ?? `Request ${sequence.id}`,
      detail: isDone ? `answering, ${count(sequence.generated)} tokens`
                     : `${count(sequence.done)} of ${count(sequence.prompt)} tokens`,
      cells: cellsOf(sequence.blocks, held),
    });
  }
  for (const pin of view.pins) {
    const cells = cellsOf(pin.blocks, held, 0);
    for (let i = 0; i < pin.disk; ++i) cells.push({id: -1, place: 'k', extra: true});
    wanted.push({
      key: `p${pin.name}`,
      name: nameOf(pin) ?? pin.name,
      detail: `pinned, ${count(cells.length * kv.block_tokens)} tokens`,
      cells,
    });
  }
  const loose = [];  // runs of one or two blocks share a row
  view.kept.forEach((runs) => {
    const cells = cellsOf(runs, held);
    if (cells.length < 3) return loose.push(...cells);
    wanted.push({
      key: `k${cells[0].id}`,
      name: nameOf({blocks: runs, kept: true}) ?? 'Kept',
      detail: `${count(cells.length * kv.block_tokens)} tokens`,
      cells,
    });
  });
  if (loose.length > 0) {
    wanted.push({key: 'loose', name: 'Kept pieces', detail: `${count(loose.length)} blocks`, cells: loose});
  }
  // Blocks that the engine holds for no request and no pin: they are on their way to or from the disk.
  const rest = kv.blocks - held.size - kv.blank;
  if (rest > 0) {
    const cells = Array.from({length: rest}, () => ({id: -1, place: kv.on_host ? 'h' : 'd', again: false}));
    wanted.push({key: 'held', name: 'Held', detail: `${count(rest * kv.block_tokens)} tokens`, cells});
  }
  if (view.slots.length > 0) wanted.push(ringRow(view));
  const free = Array.from({length: kv.blank}, () => ({id: -1, place: 'f', again: false}));
  wanted.push({key: 'free', name: 'Free', detail: `${count(kv.blank)} blocks`, cells: free});
  apply(wanted, kv, held);
  explain(wanted);
  const used = kv.blocks - kv.blank;
  sum.textContent = `${count(used)} of ${count(kv.blocks)} blocks, ${bytes(used * kv.block_bytes)} of ${
      bytes(kv.blocks * kv.block_bytes)} ${kv.on_host ? 'host' : 'device'} memory`;
}

// The legend grows with what there is.
function explain(wanted) {
  const hidden = document.querySelectorAll('.legend [data-place][hidden]');
  for (const item of hidden) {
    item.hidden = !wanted.some((row) => row.cells.some((cell) => cell.place === item.dataset.place));
  }
}

function apply(wanted, kv, held) {
  const keys = new Set(wanted.map((row) => row.key));
  for (const [key, row] of rows) {
    if (keys.has(key)) continue;
    row.element.remove();
    rows.delete(key);
  }
  const size = cellSize(kv.blocks);
  let before = null;
  for (const want of wanted) {
    const row = rows.get(want.key) ?? makeRow(want.key);
    Object.assign(row, {...want, size, kv, held});
    row.title.textContent = want.name;
    row.note.textContent = want.detail;
    const own = want.cells.filter((cell) => !cell.again && !cell.extra).length;
    row.canvas.dataset.cells = String(own);
    row.canvas.setAttribute('aria-label', want.key === 'ring' ? `${want.name}: ${want.detail}`
        : `${want.name}: ${count(want.cells.length)} blocks`);
    if (before === null ? box.firstChild !== row.element : before.nextSibling !== row.element) {
      if (before === null) box.prepend(row.element);
      else before.after(row.element);
    }
    before = row.element;
    draw(row);
  }
  box.classList.toggle('tall', box.scrollHeight > window.innerHeight * .6);
}

function makeRow(key) {
  const element = document.createElement('div');
  element.className = 'row';
  const head = document.createElement('p');
  head.className = 'row-name';
  const title = document.createElement('b');
  const note = document.createElement('span');
  head.append(title, note);
  const canvas = document.createElement('canvas');
  canvas.tabIndex = 0;
  canvas.setAttribute('role', 'img');
  element.append(head, canvas);
  const row = {element, title, note, canvas, cells: [], cursor: -1};
  rows.set(key, row);
  canvas.addEventListener('pointermove', (event) => point(row, event));
  canvas.addEventListener('pointerleave', () => leave(row));
  canvas.addEventListener('blur', () => leave(row));
  canvas.addEventListener('keydown', (event) => move(row, event));
  return row;
}

// Cells are as wide as the row allows, so that rows end flush.
function gridOf(row) {
  const width = row.canvas.clientWidth;
  const columns = Math.max(1, Math.floor((width + 2) / (row.size + (row.size > 6 ? 2 : 1))));
  const gap = row.size > 6 ? 2 : 1;
  return {columns, gap, pitch: row.size + gap};
}

function draw(row) {
  const {columns, pitch} = gridOf(row);
  let lines = Math.max(1, Math.ceil(row.cells.length / columns));
  if (row.key === 'free') lines = Math.min(lines, kMaxFreeRows);
  const height = lines * pitch;
  row.canvas.style.height = `${height}px`;
  const {context} = fit(row.canvas, height);
  const c = colours();
  const radius = row.size > 6 ? 2 : 1;
  row.cells.slice(0, lines * columns).forEach((cell, i) => {
    if (cell.place === ' ') return;
    const x = i % columns * pitch, y = Math.floor(i / columns) * pitch;
    context.beginPath();
    context.roundRect(x, y, row.size, row.size, radius);
    context.globalAlpha = cell.again ? .45 : 1;
    if (cell.place === 'd') context.fillStyle = c.accent;
    else if (cell.place === 'h') context.fillStyle = c.glow(.4);
    else if (cell.place === 'f' || cell.place === 'e') context.fillStyle = c.line;
    else if (cell.place === 'p') context.fillStyle = c.glow(.7);
    else context.fillStyle = c.glow(cell.place === 'k' ? 0 : .14);
    context.fill();
    if ('ckl'.includes(cell.place)) {
      context.strokeStyle = c.accent;
      context.lineWidth = 1;
      context.setLineDash(cell.place === 'l' ? [2, 2] : []);
      context.beginPath();
      context.roundRect(x + .5, y + .5, row.size - 1, row.size - 1, radius);
      context.stroke();
    }
    context.globalAlpha = 1;
    if (i === row.cursor) {
      context.setLineDash([]);
      context.strokeStyle = c.ink;
      context.lineWidth = 1.5;
      context.strokeRect(x - .25, y - .25, row.size + .5, row.size + .5);
    }
  });
}

function holdersText(row, holders) {
  if (row.key.startsWith('k') || row.key === 'loose') return 'Held by none; a prompt that begins alike finds it';
  if (holders === undefined) return 'Pinned; a prompt that begins with it reads it';  // on disk
  const requests = holders === 1 ? 'Held by one request' : holders > 1 ? `Held by ${holders} requests` : '';
  return row.key.startsWith('p') ? ['Pinned', requests].filter(Boolean).join('. ') : requests;
}

function tellSlot(cell, x, y) {
  const name = `Slot ${cell.slot}`;
  if (cell.place === 'p') return showTip(x, y, [name, 'The pages that decode listed last']);
  if (cell.place === 'e') return showTip(x, y, [name, 'Free']);
  showTip(x, y, [name, `Block ${cell.id}, layer ${cell.layer}`], textOf(cell.id));
}

function tell(row, x, y) {
  const cell = row.cells[row.cursor];
  if (!cell || cell.place === ' ') return hideTip();
  if (row.key === 'ring') return tellSlot(cell, x, y);
  if (!'fk'.includes(cell.place) && cell.id < 0) return showTip(x, y, ['Held block', kPlaces[cell.place], 'Being stored']);
  if (cell.place === 'f') return showTip(x, y, ['Free block', `${count(row.kv.block_tokens)} tokens fit`]);
  const tokens = row.kv.block_tokens;
  const begin = row.cursor * tokens;
  showTip(x, y, [
    cell.id < 0 ? 'Block in the KV store' : `Block ${cell.id}`,
    `Tokens ${count(begin)} to ${count(begin + tokens)}, ${kPlaces[cell.place]}`,
    holdersText(row, row.held.get(cell.id)),
  ], textOf(cell.id));
}

function point(row, event) {
  const {columns, pitch} = gridOf(row);
  const at = row.canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - at.left) / pitch);
  const index = column < columns ? Math.floor((event.clientY - at.top) / pitch) * columns + column : -1;
  if (index !== row.cursor) {
    row.cursor = index < row.cells.length ? index : -1;
    draw(row);
  }
  tell(row, event.clientX, event.clientY);
}

function leave(row) {
  row.cursor = -1;
  hideTip();
  draw(row);
}

function move(row, event) {
  const {columns, pitch} = gridOf(row);
  const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns};
  if (event.key === 'Escape') return leave(row);
  if (!(event.key in steps)) return;
  event.preventDefault();
  row.cursor = Math.max(0, Math.min(row.cells.length - 1, row.cursor + (row.cursor < 0 ? 1 : steps[event.key])));
  draw(row);
  const at = row.canvas.getBoundingClientRect();
  tell(row, at.left + row.cursor % columns * pitch, at.top + Math.floor(row.cursor / columns) * pitch);
}

onRedraw(() => rows.forEach(draw));
