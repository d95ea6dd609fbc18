// The conversation: questions, answers as they are written, thoughts folded, a stop button.
import {events} from './api.js';
import * as conversations from './conversations.js';
import * as file from './document.js';
import {byId} from './elements.js';
import {follow, startFollowing} from './follow.js';
import {count, duration, rate} from './format.js';
import {showFirstToken} from './numbers.js';
import * as reading from './reading.js';
import * as settings from './settings.js';
import {TurnView} from './turn.js';

const list = byId('messages'), form = byId('form'), question = byId('question');

// A turn: {question, answer, thought, note, isError}. A stopped answer counts as what there is of it.
let conversation = conversations.fresh();
let running = null;   // AbortController
let editing = null;   // the turn whose question is being written anew
let model = '';

export const isAsking = () => running !== null;

function messagesFor(text, turns) {
  const before = byId('follow').checked ? turns.filter((turn) => turn.answer !== '') : [];
  const messages = [];
  for (const turn of [...before, {question: text}]) {
    const isFirst = messages.length === 0;
    messages.push({role: 'user', content: isFirst ? file.withDocument(turn.question) : turn.question});
    if (turn.answer !== undefined) messages.push({role: 'assistant', content: turn.answer});
  }
  return [...settings.systemMessages(), ...messages];
}

const addView = (turn) => new TurnView(list, turn, {
  again: (turn) => running === null && askAgain(turn),
  edit: (turn) => running === null && edit(turn),
});

// Leaves out a turn and all after it.
function cutBefore(turn) {
  const index = conversation.turns.indexOf(turn);
  conversation.turns.splice(index);
  while (list.childElementCount > index) list.lastElementChild.remove();
}

function askAgain(turn) {
  if (isHeldUp()) return;
  cutBefore(turn);
  ask(turn.question);
}

function edit(turn) {
  editing = turn;
  question.value = turn.question;
  grow();
  refresh();
  question.focus();
}

function stopEditing() {
  if (editing === null) return;
  editing = null;
  question.value = '';
  grow();
  refresh();
}

export function refresh() {
  const isBusy = running !== null;
  byId('send').hidden = isBusy;
  byId('stop').hidden = !isBusy;
  byId('load').disabled = isBusy;
  byId('clear').hidden = byId('export').hidden = conversation.turns.length === 0 || isBusy;
  byId('cancel-edit').hidden = editing === null;
  if (!file.isLoading()) byId('ask-note').textContent = '';
  question.placeholder = file.current() ? 'Ask about the document' : 'Ask a question';
}

function noteOf({begin, first, usage, timings, reason}) {
  const parts = [];
  if (reason === 'length') {
    const isOwn = (usage?.completion_tokens ?? 0) >= settings.limit();
    parts.push(isOwn ? `cut at the limit of ${count(settings.limit())} tokens (Settings)`
                     : 'cut where the model’s context ends');
  }
  if (first > 0) parts.push(`first token after ${duration((first - begin) / 1000)}`);
  if (usage) {
    parts.push(`${count(usage.completion_tokens)} tokens`);
    if (timings?.predicted_per_second > 0) parts.push(`${rate(timings.predicted_per_second)} a second`);
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${count(cached)} of ${count(usage.prompt_tokens)} prompt tokens from memory`);
  }
  return parts.join(', ').replace(/^./, (letter) => letter.toUpperCase());
}

function takeEvent(event, view, state) {
  if (event.error) throw new Error(event.error.message);
  const progress = event.prompt_progress ?? event.choices?.[0]?.prompt_progress;
  if (progress) {
    file.follow(progress);
    if (progress.processed < progress.total) {
      view.say(`Reading ${count(progress.processed)} of ${count(progress.total)} tokens`);
    }
  }
  const choice = event.choices?.[0];
  const thought = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning ?? '';
  const text = choice?.delta?.content ?? '';
  if ((thought !== '' || text !== '') && state.first === 0) {
    state.first = performance.now();
    showFirstToken((state.first - state.begin) / 1000);
    view.say('');
  }
  view.turn.thought += thought;
  view.turn.answer += text;
  if (thought !== '' || text !== '') view.showSoon(() => follow(view.element));
  state.reason = choice?.finish_reason ?? state.reason;
  if (event.usage) {
    state.usage = event.usage;
    state.timings = event.timings;
  }
}

async function ask(text) {
  const own = conversation;
  const messages = messagesFor(text, own.turns);
  // The note stays if the tab is closed on the way.
  const turn = {question: text, answer: '', thought: '', note: 'Stopped', isError: false};
  own.turns.push(turn);
  conversations.enter(own);
  own.documentKey = file.current()?.key ?? '';
  own.documentName = file.current()?.name ?? '';
  const view = addView(turn);
  const state = {begin: performance.now(), first: 0};
  running = new AbortController();
  view.begin();
  view.say('');
  reading.clearReads();
  refresh();
  startFollowing(view.element);
  const body = {
    messages, stream: true, return_progress: true, stream_options: {include_usage: true},
    ...settings.requestFields(),
  };
  try {
    for await (const event of events('/v1/chat/completions', {body, signal: running.signal})) {
      takeEvent(event, view, state);
      conversations.save(own, true);
    }
    file.finishProgress(state.usage, state.timings);
    turn.note = noteOf(state);
  } catch (error) {
    turn.isError = error.name !== 'AbortError';
    turn.note = turn.isError ? error.message : 'Stopped';
  }
  running = null;
  view.finish();
  follow(view.element);
  conversations.save(own);
  refresh();
  question.focus({preventScroll: true});
  reading.seek();
}

function grow() {
  question.style.height = 'auto';
  question.style.height = `${question.scrollHeight}px`;
}

function isHeldUp() {
  if (!file.isLoading()) return false;
  byId('ask-note').textContent = 'The document is being computed. Ask when it is there, or stop it.';
  return true;
}

function submit() {
  const text = question.value.trim();
  if (text === '' || running !== null || isHeldUp()) return;
  if (editing !== null) cutBefore(editing);
  editing = null;
  question.value = '';
  grow();
  ask(text);
}

function show(next) {
  running?.abort();
  stopEditing();
  conversation = next;
  list.replaceChildren();
  for (const turn of conversation.turns) addView(turn);
  reading.clearReads();
  refresh();
}

// A conversation of the list, with its document if this browser has it.
async function openPast(next) {
  show(next);
  await file.open(next.documentKey);
  question.focus();
}

export const setModel = (name) => {
  model = name;
};

// What the tab had before a reload.
export async function restoreConversation() {
  await conversations.startConversations(openPast);
  const kept = await conversations.restore();
  if (kept !== undefined) show(kept);
}

export function startChat() {
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    submit();
  });
  question.addEventListener('input', grow);
  question.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  byId('stop').addEventListener('click', () => running?.abort());
  byId('cancel-edit').addEventListener('click', stopEditing);
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || byId('settings').open) return;
    if (running !== null) running.abort();
    else stopEditing();
  });
  byId('clear').addEventListener('click', () => {
    conversations.leave();
    show(conversations.fresh());
    conversations.showList();
    question.focus();
  });
  byId('export').addEventListener('click', () => conversations.exportMarkdown(conversation, model));
  refresh();
}
