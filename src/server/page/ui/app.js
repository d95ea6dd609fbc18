// The page: one view of the engine for all instruments, and the conversation beside them.
import {events, json, onKeyNeeded} from './api.js';
import {isAsking, refresh, restoreConversation, setModel, startChat} from './chat.js';
import * as file from './document.js';
import {byId} from './elements.js';
import {setTextOf, showMemory} from './memory.js';
import {showNumbers} from './numbers.js';
import {sayWhyFlat} from './reading.js';
import {startSettings} from './settings.js';
import {followTimeline, startTimeline} from './timeline.js';

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function say(text) {
  byId('status').textContent = text;
}

// Resolves with the key; `wasWrong`: one was given before.
let asking = null;
function askForKey(wasWrong) {
  asking ??= new Promise((resolve) => {
    const dialog = byId('key-dialog');
    byId('key-wrong').hidden = !wasWrong;
    byId('key').value = '';
    dialog.addEventListener('cancel', (event) => event.preventDefault());
    byId('key-form').addEventListener('submit', () => {
      asking = null;
      resolve(byId('key').value.trim());
    }, {once: true});
    dialog.showModal();
  });
  return asking;
}

function show(view) {
  file.followBlocks(view);
  showNumbers(view);
  showMemory(view, file.nameOf);
  followTimeline(view.steps);
}

// The server's first answer; while it loads its model, how far it is.
async function connect() {
  for (;;) {
    try {
      const about = await json('/sluice/state');
      say('');
      return about;
    } catch (error) {
      say(error.status === 503 ? await loadingText() : 'The server does not answer; trying again …');
      await sleep(1000);
    }
  }
}

async function loadingText() {
  try {
    const health = await (await fetch('/health')).json();
    if (health.status === 'loading') {
      return `The model is being loaded: ${health.stage}, ${Math.round(100 * (health.share ?? 0))} %`;
    }
    return health.status === 'draining' ? 'The server is shutting down.' : 'The server cannot serve.';
  } catch {
    return 'The server does not answer; trying again …';
  }
}

const visible = () => document.hidden ? new Promise((resolve) => {
  document.addEventListener('visibilitychange', resolve, {once: true});
}).then(visible) : Promise.resolve();

// A tab that is not visible does not watch, unless it waits for an answer: a browser has few
// connections for all tabs of a server.
async function watch() {
  for (;;) {
    await visible();
    const pause = new AbortController();
    const onHide = () => document.hidden && !isAsking() && !file.isLoading() && pause.abort();
    document.addEventListener('visibilitychange', onHide);
    try {
      for await (const view of events('/sluice/events', {signal: pause.signal})) show(view);
    } catch {
      // The server went away; connect() says so.
    }
    document.removeEventListener('visibilitychange', onHide);
    if (pause.signal.aborted) continue;
    await sleep(500);
    begin(await connect());
  }
}

function begin(about) {
  byId('model').textContent = about.model;
  document.title = `${about.model}, Sluice`;
  file.startDocument(about, refresh);
  startTimeline(about.timeline);
  setModel(about.model);
  sayWhyFlat(about.view.reads.page_tokens === 0);
  show(about.view);
}

onKeyNeeded(askForKey);
setTextOf(file.textOfBlock);
startChat();
startSettings(file.measureAgain);
begin(await connect());
document.documentElement.dataset.ready = 'true';
watch();
await restoreConversation();
await file.restoreDocument();
document.documentElement.dataset.restored = 'true';
