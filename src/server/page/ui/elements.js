// What is made of elements in several places.
export const byId = (id) => document.getElementById(id);

export function make(tag, name = '', text = '') {
  const element = document.createElement(tag);
  if (name !== '') element.className = name;
  element.textContent = text;
  return element;
}

export function makeButton(label, onClick, name = 'quiet') {
  const button = make('button', name, label);
  button.type = 'button';
  button.addEventListener('click', onClick);
  return button;
}

// Pages from other machines have no clipboard without TLS; there a selection is copied.
async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make('textarea', 'sr');
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand('copy');
  area.remove();
  if (!isDone) throw new Error('the browser does not copy');
}

// `textOf`: called when the button is pressed. It says for a moment what came of it.
export function copyButton(label, textOf) {
  let timer = 0;
  const button = makeButton('Copy', async () => {
    let said = 'Copied';
    try {
      await toClipboard(textOf());
    } catch {
      said = 'Not copied';
    }
    button.textContent = said;
    button.focus({preventScroll: true});
    clearTimeout(timer);
    timer = setTimeout(() => {
      button.textContent = 'Copy';
    }, 1500);
  });
  button.setAttribute('aria-label', label);
  return button;
}

export function download(name, text, type) {
  const link = make('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
