// The conversation: questions, answers as they are written, thoughts folded, a stop button.
import {events} from './api.js';
import * as file from './document.js';
import {count, duration, rate} from './format.js';
import {showFirstToken} from './numbers.js';
import * as reading from './reading.js';

const byId = (id) => document.getElementById(id);
const list = byId('messages'), form = byId('form'), question = byId('question');

let turns = [];      // {question, answer}: those that the next question sees
let running = null;  // AbortController

const make = (tag, name, text = '') => {
  const element = document.createElement(tag);
  element.className = name;
  element.textContent = text;
  return element;
};

function messagesFor(text) {
  const before = byId('follow').checked ? turns : [];
  const messages = [];
  for (const turn of [...before, {question: text}]) {
    const isFirst = messages.length === 0;
    messages.push({role: 'user', content: isFirst ? file.withDocument(turn.question) : turn.question});
    if (turn.answer !== undefined) messages.push({role: 'assistant', content: turn.answer});
  }
  return messages;
}

function addTurn(text) {
  const turn = make('li', 'turn busy');
  const thought = make('details', 'thought');
  const thoughtText = make('div', '');
  thought.append(make('summary', '', 'Thoughts'), thoughtText);
  thought.hidden = true;
  const answer = make('div', 'answer');
  const meta = make('p', 'meta');
  turn.append(make('p', 'asked', text), thought, answer, meta);
  list.append(turn);
  return {turn, thought, thoughtText, answer, meta};
}

export const isAsking = () => running !== null;

export function refresh() {
  const isBusy = running !== null;
  byId('send').hidden = isBusy;
  byId('stop').hidden = !isBusy;
  byId('send').disabled = file.isLoading();
  byId('load').disabled = isBusy;
  byId('clear').hidden = list.childElementCount === 0 || isBusy;
  question.placeholder = file.current() ? 'Ask about the document' : 'Ask a question';
}

function describe(meta, {begin, first, usage, timings}) {
  const parts = [];
  if (first > 0) parts.push(`first token after ${duration((first - begin) / 1000)}`);
  if (usage) {
    parts.push(`${count(usage.completion_tokens)} tokens`);
    if (timings?.predicted_per_second > 0) parts.push(`${rate(timings.predicted_per_second)} a second`);
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${count(cached)} of ${count(usage.prompt_tokens)} prompt tokens from memory`);
  }
  meta.textContent = parts.join(', ').replace(/^./, (letter) => letter.toUpperCase());
}

function takeEvent(event, view, state) {
  if (event.error) throw new Error(event.error.message);
  const progress = event.prompt_progress ?? event.choices?.[0]?.prompt_progress;
  if (progress) {
    file.follow(progress);
    if (progress.processed < progress.total) {
      view.meta.textContent = `Reading ${count(progress.processed)} of ${count(progress.total)} tokens`;
    }
  }
  const delta = event.choices?.[0]?.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning ?? '';
  if ((thought !== '' || delta.content) && state.first === 0) {
    state.first = performance.now();
    showFirstToken((state.first - state.begin) / 1000);
    view.meta.textContent = '';
  }
  if (thought !== '') {
    view.thought.hidden = false;
    view.thoughtText.append(thought);
  }
  if (delta.content) view.answer.append(delta.content);
  if (event.usage) {
    state.usage = event.usage;
    state.timings = event.timings;
  }
}

async function ask(text) {
  const view = addTurn(text);
  const state = {begin: performance.now(), first: 0};
  running = new AbortController();
  reading.clearReads();
  refresh();
  view.turn.scrollIntoView({block: 'nearest'});
  const body = {
    messages: messagesFor(text), stream: true, return_progress: true,
    stream_options: {include_usage: true},
  };
  try {
    for await (const event of events('/v1/chat/completions', {body, signal: running.signal})) {
      takeEvent(event, view, state);
    }
    file.finishProgress(state.usage, state.timings);
    turns.push({question: text, answer: view.answer.textContent});
    describe(view.meta, state);
  } catch (error) {
    if (error.name === 'AbortError') {
      view.meta.textContent = 'Stopped';
    } else {
      view.meta.textContent = error.message;
      view.meta.classList.add('error');
    }
  }
  running = null;
  view.turn.classList.remove('busy');
  refresh();
  question.focus({preventScroll: true});
  showWhereItRead();
}

// The last reads come with the view after the answer.
function showWhereItRead() {
  setTimeout(() => {
    const page = reading.hottestPage();
    if (page >= 0 && running === null) reading.showPage(page);
  }, 400);
}

function grow() {
  question.style.height = 'auto';
  question.style.height = `${question.scrollHeight}px`;
}

export function startChat() {
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const text = question.value.trim();
    if (text === '' || running !== null || file.isLoading()) return;
    question.value = '';
    grow();
    ask(text);
  });
  question.addEventListener('input', grow);
  question.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  byId('stop').addEventListener('click', () => running?.abort());
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && running !== null) running.abort();
  });
  byId('clear').addEventListener('click', () => {
    turns = [];
    list.replaceChildren();
    reading.clearReads();
    refresh();
    question.focus();
  });
  refresh();
}
