// Documents that the server holds as pins, whoever loaded them, and the texts that this browser has.
// The page's pins carry the name and the hash of their document, so that any browser can name them
// and one with the same text recognises it.
import {call} from './api.js';
import {byId, make, makeButton} from './elements.js';
import {bytes, count} from './format.js';
import * as settings from './settings.js';
import * as store from './store.js';

const kMaxTexts = 12;  // of documents that are not held
const kPin = /^page-(.+?)-([0-9a-f]{14})(?:-([0-9a-f]{8}))?$/;
const list = byId('held-list');

let known = new Map();  // by key: {key, name, size, time}
let shownAs = '';
let lastView = null;
let onOpen = () => {};

// 53 bits of all characters.
export function hashOf(text) {
  let a = 0xdeadbeef, b = 0x41c6ce57;
  for (let i = 0; i < text.length; ++i) {
    const c = text.charCodeAt(i);
    a = Math.imul(a ^ c, 2654435761);
    b = Math.imul(b ^ c, 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return (4294967296 * (2097151 & b) + (a >>> 0)).toString(16).padStart(14, '0');
}

// What else the prompt begins with; empty without settings that change it.
function variant() {
  const fields = [settings.systemText(), settings.templateFields()];
  return fields[0] === '' && Object.keys(fields[1]).length === 0
      ? '' : hashOf(JSON.stringify(fields)).slice(-8);
}

// The pin of a document with the settings of now, if the server has it.
export const pinOf = (doc, view) => view.pins.find((pin) => {
  const [, , key, other = ''] = kPin.exec(pin.name) ?? [];
  return key === doc.key && other === variant();
});

export function pinName(doc) {
  const pin = lastView && pinOf(doc, lastView);
  if (pin) return pin.name;
  const name = doc.name.replace(/[^A-Za-z0-9._-]+/g, '_').slice(0, 30) || 'text';
  return ['page', name, doc.key, variant()].filter(Boolean).join('-');
}

// Null: no pin of a page.
export function nameOfPin(name) {
  const [, slug, key] = kPin.exec(name) ?? [];
  return slug === undefined ? null : known.get(key)?.name ?? slug;
}

export async function keep(doc) {
  const row = {key: doc.key, name: doc.name, size: doc.size, time: Date.now()};
  await store.put('texts', {key: doc.key, text: doc.text});
  await store.put('documents', row);
  known.set(doc.key, row);
  const held = new Set((lastView?.pins ?? []).map((pin) => kPin.exec(pin.name)?.[2]));
  const others = [...known.values()].filter((one) => !held.has(one.key)).sort((a, b) => b.time - a.time);
  for (const {key} of others.slice(kMaxTexts)) {
    known.delete(key);
    await store.remove('documents', key);
    await store.remove('texts', key);
  }
  redraw();
}

// {name, text, size}, or null.
export async function textOf(key) {
  const [row, text] = [await store.get('documents', key), await store.get('texts', key)];
  return row && text ? {name: row.name, size: row.size, text: text.text} : null;
}

function rowOf({pin, name, key, tokens, size}) {
  const row = make('li');
  row.append(make('span', 'title', name), make('span', 'soft', `${count(tokens)} tokens, ${bytes(size)}`));
  const buttons = make('span', 'actions');
  if (known.has(key)) {
    const open = makeButton('Open', () => onOpen(key));
    open.setAttribute('aria-label', `Open ${name}`);
    buttons.append(open);
  }
  const free = makeButton('Free', () => {
    call(`/sluice/pins/${pin}`, {method: 'DELETE'}).catch(() => {});
    byId('held').firstElementChild.focus();
  });
  free.setAttribute('aria-label', `Free the memory of ${name}`);
  buttons.append(free);
  row.append(buttons);
  return row;
}

function redraw() {
  if (lastView === null) return;
  const {pins, kv} = lastView;
  const rows = pins.flatMap((pin) => {
    const [, , key] = kPin.exec(pin.name) ?? [];
    if (key === undefined) return [];
    const blocks = pin.disk + pin.blocks.reduce((sum, [, length]) => sum + length, 0);
    return [{pin: pin.name, key, name: nameOfPin(pin.name), tokens: blocks * kv.block_tokens,
             size: blocks * kv.block_bytes}];
  });
  const text = JSON.stringify([rows, rows.map((row) => known.has(row.key))]);
  if (text === shownAs) return;
  shownAs = text;
  byId('held').hidden = rows.length === 0;
  byId('held-sum').textContent = rows.length === 1 ? '1 document is held'
      : `${rows.length} documents are held`;
  list.replaceChildren(...rows.map(rowOf));
}

export function showHeld(view) {
  lastView = view;
  redraw();
}

// `open`: called with the key of a document whose text is here.
export async function startHeld(open) {
  onOpen = open;
  known = new Map((await store.all('documents')).map((row) => [row.key, row]));
  redraw();
  byId('held').addEventListener('toggle', async () => {
    known = new Map((await store.all('documents')).map((row) => [row.key, row]));
    redraw();
  });
}
