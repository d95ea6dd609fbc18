// The conversations that the browser keeps: the tab's own, which a reload brings back, and the list.
import {byId, download, make, makeButton} from './elements.js';
import * as store from './store.js';

const kCurrent = 'sluice-conversation';  // of this tab
const list = byId('past-list');
const kSaveEveryMs = 1000;

let onOpen = () => {};

// {key, title, documentKey, documentName, turns, time}; without a key: not kept yet.
export const fresh = () => ({key: '', title: '', documentKey: '', documentName: '', turns: [], time: 0});

// The tab's own from now on; a reload brings it back.
export function enter(conversation) {
  if (conversation.key === '') {
    conversation.key = `${Date.now()}-${Math.random().toString(36).slice(2)}`;
  }
  sessionStorage.setItem(kCurrent, conversation.key);
}

let lastSave = 0;
// `isSoon`: while an answer comes, not each time.
export async function save(conversation, isSoon = false) {
  const now = Date.now();
  if (isSoon && now - lastSave < kSaveEveryMs) return;
  lastSave = now;
  conversation.title = conversation.turns[0]?.question.slice(0, 80) ?? '';
  conversation.time = now;
  await store.put('conversations', structuredClone(conversation));
  if (!isSoon) await showList();
}

export async function restore() {
  const key = sessionStorage.getItem(kCurrent);
  return key === null ? undefined : store.get('conversations', key);
}

export const leave = () => sessionStorage.removeItem(kCurrent);

let numCalls = 0;
let shown = '';
// Of two calls at once the later one shows the list. Rows that did not change stay, since new ones
// would take the focus from a button between its focus and its press.
export async function showList() {
  const call = ++numCalls;
  const current = sessionStorage.getItem(kCurrent);
  const others = (await store.all('conversations')).filter((one) => one.key !== current)
      .sort((a, b) => b.time - a.time);
  const versions = others.map((one) => `${one.key} ${one.time}`).join();
  if (call !== numCalls || versions === shown) return;
  shown = versions;
  byId('past').hidden = others.length === 0;
  byId('past-count').textContent = String(others.length);
  list.replaceChildren(...others.map((one) => {
    const row = make('li');
    const open = makeButton(one.title, () => {
      byId('past').open = false;
      enter(one);
      onOpen(one);
      showList();
    }, 'quiet title');
    const remove = makeButton('Delete', async () => {
      await store.remove('conversations', one.key);
      await showList();
      byId('past').firstElementChild.focus();
    });
    remove.setAttribute('aria-label', `Delete “${one.title}”`);
    row.append(open, make('span', 'soft', one.documentName), remove);
    return row;
  }));
}

const quoted = (text) => text.split('\n').map((line) => `> ${line}`).join('\n');

export function exportMarkdown(conversation, model) {
  const parts = [`# ${conversation.title}`, `Model: ${model}` +
      (conversation.documentName === '' ? '' : `. Document: ${conversation.documentName}`)];
  for (const turn of conversation.turns) parts.push(quoted(turn.question), turn.answer, turn.note);
  const name = conversation.title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 40);
  download(`${name || 'conversation'}.md`, `${parts.filter(Boolean).join('\n\n')}\n`, 'text/markdown');
}

export function startConversations(opened) {
  onOpen = opened;
  byId('past').addEventListener('toggle', () => byId('past').open && showList());
  return showList();
}
