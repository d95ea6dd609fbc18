// Requests to the server that the page came from, with the key if it asks for one.
const kKey = 'sluice-key';

let askForKey = async () => {
  throw new Error('a key is needed');
};
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more = {}) {
  const key = sessionStorage.getItem(kKey);
  return key ? {...more, Authorization: `Bearer ${key}`} : more;
}

async function errorOf(response) {
  let message = `the server answered ${response.status}`;
  try {
    const body = await response.json();
    message = body.error?.message ?? message;
  } catch {
    // No JSON: the status says it.
  }
  return new ApiError(response.status, message);
}

// A response that is ok; asks for the key as often as it is wrong.
export async function call(path, {body, signal, method} = {}) {
  for (;;) {
    const response = await fetch(path, {
      method: method ?? (body === undefined ? 'GET' : 'POST'),
      headers: headers(body === undefined ? {} : {'Content-Type': 'application/json'}),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: 'no-store',
    });
    if (response.ok) return response;
    if (response.status !== 401) throw await errorOf(response);
    sessionStorage.setItem(kKey, await askForKey(sessionStorage.getItem(kKey) !== null));
  }
}

export const json = async (path, options) => (await call(path, options)).json();

// The data of each event of a stream, until it ends.
export async function* events(path, options) {
  const response = await call(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const data = text.slice(0, end).split('\n').filter((line) => line.startsWith('data: '))
          .map((line) => line.slice(6)).join('\n');
      text = text.slice(end + 2);
      if (data !== '' && data !== '[DONE]') yield JSON.parse(data);
    }
  }
}
