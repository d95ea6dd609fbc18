// What answers are asked for with, kept in the browser for all its tabs.
import {byId} from './elements.js';

const kKey = 'sluice-settings';
// A limit by default: a model that does not come to an end would use all the room.
const kDefaults = {limit: 2048, temperature: '', thinking: '', system: ''};
const form = byId('settings-form');
const dialog = byId('settings');

let values = load();
let onChange = () => {};

function load() {
  try {
    return {...kDefaults, ...JSON.parse(localStorage.getItem(kKey) ?? '{}')};
  } catch {
    return {...kDefaults};
  }
}

function show() {
  for (const name of Object.keys(kDefaults)) form.elements[name].value = values[name];
}

// What prompts begin with.
const prompt = () => JSON.stringify([values.system, values.thinking]);

function take() {
  const before = prompt();
  const limit = Math.floor(Number(form.elements.limit.value));
  values = {
    limit: limit >= 1 ? limit : kDefaults.limit,
    temperature: form.elements.temperature.validity.valid ? form.elements.temperature.value : '',
    thinking: form.elements.thinking.value,
    system: form.elements.system.value.trim(),
  };
  localStorage.setItem(kKey, JSON.stringify(values));
  if (prompt() !== before) onChange();
}

export const limit = () => values.limit;
export const systemText = () => values.system;

// The first messages of each prompt.
export const systemMessages = () =>
    values.system === '' ? [] : [{role: 'system', content: values.system}];

// Members of a request for an answer.
export function requestFields() {
  const fields = {max_tokens: values.limit};
  if (values.temperature !== '') fields.temperature = Number(values.temperature);
  return {...fields, ...templateFields()};
}

// Members of any request with messages: they change the prompt.
export const templateFields = () =>
    values.thinking === '' ? {} : {chat_template_kwargs: {enable_thinking: values.thinking === 'on'}};

// `changed`: called when prompts begin with something else.
export function startSettings(changed) {
  onChange = changed;
  byId('open-settings').addEventListener('click', () => {
    show();
    dialog.showModal();
  });
  dialog.addEventListener('close', take);
  byId('settings-defaults').addEventListener('click', () => form.reset());
  window.addEventListener('storage', (event) => {
    if (event.key !== kKey) return;
    const before = prompt();
    values = load();
    if (prompt() !== before) onChange();
  });
}
