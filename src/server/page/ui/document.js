// The document beside the conversation: read, counted, computed once, and found again in memory.
import {events, json} from './api.js';
import {byId} from './elements.js';
import {readFile} from './files.js';
import {bytes, count, duration, rate} from './format.js';
import * as held from './held.js';
import * as reading from './reading.js';
import * as settings from './settings.js';
import {startsOf, TokenPlaces} from './text.js';

const kCurrent = 'sluice-document';  // of this tab
const kMark = 'sluice-document-text';
const kMaxPlacedChars = 8_000_000;  // longer ones: places in proportion

let server = {max_model_len: 0};
let doc = null;              // {key, name, text, size, tokens, places}
let blockIndex = new Map();  // block id to its place in the document
let blockTokens = 0;
let pendingTotal = 0;        // prompt tokens of the request that holds the document now
let loading = null;          // AbortController
let isPinned = false;
let isInMemory = false;      // all of it, as far as whole blocks go
let onChange = () => {};
let isUntouched = true;      // nothing is said yet of what is computed
let lastView = null;

export function startDocument(about, changed) {
  server = about;
  onChange = changed;
}
export const current = () => doc;
export const isLoading = () => loading !== null;

// The first message of a conversation on the document. What comes before the question is the same
// in all of them, so the engine finds it again.
export const withDocument = (question) => doc ? `${doc.text}\n\n${question}` : question;

function showError(message) {
  byId('doc-error').textContent = message;
  byId('doc-error').hidden = message === '';
}

function setProgressText(text, from = '') {
  byId('progress-text').textContent = text;
  byId('progress-from').textContent = from;
}

// Counts the tokens as the server will, and learns where each is in the text.
async function measure(file) {
  const messages = (text) => ({
    messages: [...settings.systemMessages(), {role: 'user', content: text}], ...settings.templateFields(),
  });
  const places = file.text.length <= kMaxPlacedChars;
  const [answer, template] = await Promise.all([
    json('/tokenize', {body: {...messages(file.text), return_token_strs: places}}),
    json('/apply-template', {body: messages(kMark)}),
  ]);
  const starts = places ? startsOf(answer.token_strs) : null;
  return {
    ...file,
    key: held.hashOf(file.text),
    tokens: answer.count,
    places: new TokenPlaces({
      numTokens: answer.count, textLength: file.text.length, starts,
      textBegin: Math.max(0, template.prompt.lastIndexOf(kMark)),
    }),
  };
}

function show() {
  byId('drop').hidden = doc !== null;
  byId('loaded').hidden = doc === null;
  if (doc === null) return;
  byId('doc-name').textContent = doc.name;
  byId('doc-size').textContent = `${count(doc.tokens)} tokens, ${bytes(doc.size)}`;
  byId('load').textContent = loading ? 'Stop' : 'Load';
  byId('load').hidden = !loading && isInMemory;
}

async function adopt(file) {
  showError('');
  setProgressText('Counting tokens …');
  try {
    const measured = await measure(file);
    if (server.max_model_len > 0 && measured.tokens >= server.max_model_len) {
      throw new Error(`${file.name} has ${count(measured.tokens)} tokens; the model reads ${
          count(server.max_model_len)}`);
    }
    doc = measured;
    blockIndex = new Map();
    pendingTotal = 0;
    isInMemory = isPinned = false;
    isUntouched = true;
    show();
    reading.setDocument(doc);
    setProgressText('Not computed yet');
    if (lastView !== null) recognise(lastView);
    sessionStorage.setItem(kCurrent, doc.key);
    held.keep(doc);
  } catch (error) {
    setProgressText('');
    showError(error.message);
  }
  onChange();
}

// Opens what this browser has of a document, or closes the one that is open. `key` may be empty.
export async function open(key) {
  if (key === (doc?.key ?? '')) return;
  const file = key === '' ? null : await held.textOf(key);
  close();
  if (file !== null) await adopt(file);
  else if (key !== '') showError('The text of this document is not in this browser. Choose its file again.');
}

export async function restoreDocument() {
  await held.startHeld(open);
  await open(sessionStorage.getItem(kCurrent) ?? '');
}

// Prompts begin with something else, and so do the document's tokens.
export async function measureAgain() {
  if (doc !== null && loading === null) await adopt(doc);
}

async function choose(files) {
  if (files.length === 0) return;
  const say = (text) => {
    byId('reading').textContent = text;
  };
  showError('');
  say('Reading the file …');
  try {
    await adopt(await readFile(files[0], say));
  } catch (error) {
    showError(error.message);
  }
  say('');
}

// The server holds it until it is freed.
function close() {
  loading?.abort();
  isPinned = false;
  doc = null;
  blockIndex = new Map();
  sessionStorage.removeItem(kCurrent);
  reading.setDocument(null);
  setProgressText('');
  showError('');
  byId('file').value = '';
  show();
  onChange();
}

// Progress of a request that begins with the document.
export function follow(progress) {
  if (doc === null) return;
  isUntouched = false;
  const {total, cache, processed, time_ms: ms} = progress;
  pendingTotal = total;
  reading.setProgress(processed, cache);
  const perSecond = (processed - cache) / Math.max(ms / 1000, 1e-3);
  const percent = Math.floor(100 * processed / total);
  byId('progress').setAttribute('aria-valuenow', String(percent));
  let text = `${count(Math.min(processed, doc.tokens))} of ${count(doc.tokens)} tokens`;
  if (processed < total && processed > cache) {
    text += `, ${rate(perSecond)} a second, ${duration((total - processed) / perSecond)} left`;
  }
  setProgressText(text, cache > 0 ? `${count(Math.min(cache, doc.tokens))} found in memory` : '');
}

// "1,024 from disk, 512 from host memory", from tokens by place.
function sourcesOf(cache) {
  const names = {device: 'the device', host: 'host memory', disk: 'disk'};
  return Object.entries(cache ?? {}).filter(([, n]) => n > 0)
      .map(([place, n]) => `${count(n)} from ${names[place]}`).join(', ');
}

// The request has all of its prompt. `places`: tokens of the cache by memory, if the server says.
export function finishProgress(usage, timings) {
  if (doc === null || !usage) return;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  reading.setProgress(doc.tokens, cached);
  byId('progress').setAttribute('aria-valuenow', '100');
  const computed = usage.prompt_tokens - cached;
  const seconds = (timings?.prompt_ms ?? 0) / 1000;
  setProgressText(
      computed > usage.prompt_tokens / 2
          ? `${count(Math.min(computed, doc.tokens))} tokens computed in ${duration(seconds)}, ${rate(computed / seconds)} a second`
          : `${count(doc.tokens)} tokens in memory, ${count(computed)} computed in ${duration(seconds)}`,
      sourcesOf(timings?.cache));
}

async function loadByPin(signal) {
  const body = {
    name: held.pinName(doc), messages: [...settings.systemMessages(), {role: 'user', content: doc.text}],
    ...settings.templateFields(),
  };
  let found = 0;
  for await (const event of events('/sluice/pins', {body, signal})) {
    if (event.error) throw new Error(event.error.message);
    if (event.prompt_progress) {
      found = event.prompt_progress.cache;
      follow(event.prompt_progress);
    }
    if (event.num_blocks !== undefined) {
      reading.setProgress(doc.tokens, found);
      byId('progress').setAttribute('aria-valuenow', '100');
      setProgressText(`${count(event.num_tokens)} tokens held, ${bytes(event.bytes)}`,
                      sourcesOf(event.cache));
    }
  }
}

async function load() {
  if (loading) return loading.abort();
  loading = new AbortController();
  byId('progress').setAttribute('aria-valuenow', '0');
  reading.clearReads();
  show();
  onChange();
  showError('');
  try {
    await loadByPin(loading.signal);
  } catch (error) {
    if (error.name === 'AbortError') setProgressText('Stopped. What was computed stays in memory.');
    else showError(error.message);
  }
  loading = null;
  show();
  onChange();
}

// Whether a prompt would find every whole block of the document.
function findInMemory(view) {
  const wanted = Math.floor(doc.tokens / blockTokens) - 1;  // the last one may end differently
  const found = new Set();
  for (const runs of [...view.sequences, ...view.pins].map((row) => row.blocks).concat(view.kept)) {
    for (const [id, length, place] of runs) {
      for (let i = 0; place !== 'c' && place !== 'l' && i < length; ++i) {
        const index = blockIndex.get(id + i);
        if (index !== undefined && index < wanted) found.add(index);
      }
    }
  }
  return wanted > 0 && found.size === wanted;
}

// A pin of the document, whichever page made it: it need not be loaded.
function recognise(view) {
  const wasPinned = isPinned;
  const pin = held.pinOf(doc, view);
  isPinned = pin !== undefined;
  if (!isPinned || wasPinned) return;
  // With blocks that only the store has, those in memory do not say where they are.
  if (blockIndex.size === 0 && pin.disk === 0) indexBlocks(pin.blocks);
  isInMemory = true;
  if (isUntouched) {
    reading.setProgress(doc.tokens, doc.tokens);
    byId('progress').setAttribute('aria-valuenow', '100');
    setProgressText(`${count(doc.tokens)} tokens held by the server`);
  }
  show();
}

function indexBlocks(runs) {
  blockIndex = new Map();
  const last = Math.ceil(doc.tokens / blockTokens);
  let index = 0;
  for (const [id, length] of runs) {
    for (let i = 0; i < length && index < last; ++i) blockIndex.set(id + i, index++);
  }
}

// Learns from a view which blocks the document has.
export function followBlocks(view) {
  blockTokens = view.kv.block_tokens;
  if (lastView !== null && view.steps < lastView.steps) {  // another engine
    blockIndex = new Map();
    isPinned = false;
  }
  lastView = view;
  held.showHeld(view);
  if (doc === null) return;
  const own = view.sequences.filter((s) => s.prompt === pendingTotal).at(-1);
  if (pendingTotal > 0 && own) indexBlocks(own.blocks);
  const wasInMemory = isInMemory;
  recognise(view);
  isInMemory = isPinned || findInMemory(view);
  if (wasInMemory && !isInMemory) {
    reading.setProgress(0, 0);
    setProgressText('No longer in memory; the next question computes it again');
  }
  if (wasInMemory !== isInMemory) show();
  reading.addReads(view.reads, blockTokens, (id) => blockIndex.get(id));
}

// The document's name for a row of the memory map that begins with it.
export function nameOf(row) {
  const first = row.blocks[0]?.[0];
  const ofPin = row.name === undefined ? null : held.nameOfPin(row.name);
  if (ofPin !== null) return ofPin;
  if (doc === null || first === undefined || blockIndex.get(first) !== 0) return null;
  return doc.name;
}

export function textOfBlock(id) {
  const index = blockIndex.get(id);
  if (doc === null || index === undefined) return '';
  const begin = doc.places.charOf(index * blockTokens);
  const end = doc.places.charOf((index + 1) * blockTokens);
  const text = doc.text.slice(begin, Math.min(end, begin + 160)).replace(/\s+/g, ' ').trim();
  return text === '' ? '' : `${text}${end > begin + 160 ? ' …' : ''}`;
}

byId('file').addEventListener('change', (event) => choose(event.target.files));
byId('remove').addEventListener('click', close);
byId('load').addEventListener('click', load);
for (const type of ['dragenter', 'dragover']) {
  document.addEventListener(type, (event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    byId('document').classList.add('over');
  });
}
document.addEventListener('dragleave', (event) => {
  if (event.relatedTarget === null) byId('document').classList.remove('over');
});
document.addEventListener('drop', (event) => {
  event.preventDefault();
  byId('document').classList.remove('over');
  choose(event.dataTransfer?.files ?? []);
});
