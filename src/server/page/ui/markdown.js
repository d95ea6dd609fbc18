// Answers as Markdown: parsed by marked, cleaned by DOMPurify before anything of it is in the page.
// A model's text is hostile: it may repeat what a document told it. Of HTML it shows the source, of
// images a link, and links lead to the web alone.
import './marked.js';
import DOMPurify from './dompurify.mjs';
import {copyButton, make} from './elements.js';

const {Lexer, Parser, Renderer, getDefaults} = globalThis.marked;

const escape = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const renderer = Object.assign(new Renderer(), {
  html: (html) => /^<br\s*\/?>$/i.test(html.trim()) ? '<br>' : escape(html),
  image: (href, title, text) => `<a href="${escape(href ?? '')}">${text || escape(href ?? '')}</a>`,
  checkbox: (isChecked) => isChecked ? '☑ ' : '☐ ',
  // Below the page's own, and of one level: models leave levels out, and readers of screens miss them.
  heading: (text) => `<h3>${text}</h3>`,
  code: (code, language) => `<pre data-language="${escape((language ?? '').split(/\s/)[0])}"><code>${
      escape(code)}</code></pre>`,
});
const options = {...getDefaults(), gfm: true, breaks: true, renderer, mangle: false, headerIds: false};

const kClean = {
  ALLOWED_TAGS: ['p', 'br', 'h3', 'ul', 'ol', 'li', 'strong', 'em', 'del', 'code',
                 'pre', 'blockquote', 'hr', 'a', 'table', 'thead', 'tbody', 'tr', 'th', 'td'],
  ALLOWED_ATTR: ['href', 'title', 'start', 'align', 'data-language'],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

function boxed(element, name) {
  const box = make('div', name);
  element.replaceWith(box);
  box.append(element);
  return box;
}

// What CSS alone cannot do.
function complete(fragment) {
  for (const link of fragment.querySelectorAll('a[href]')) {
    link.target = '_blank';
    link.rel = 'noopener noreferrer';
  }
  for (const table of fragment.querySelectorAll('table')) {
    // Keys scroll what is wider than the page.
    Object.assign(boxed(table, 'wide'), {tabIndex: 0, role: 'group', ariaLabel: 'Table'});
  }
  for (const pre of fragment.querySelectorAll('pre')) {
    const box = boxed(pre, 'code');
    const head = make('div', 'code-head');
    head.append(make('span', '', pre.dataset.language ?? ''),
                copyButton('Copy code', () => pre.textContent.replace(/\n$/, '')));
    Object.assign(pre, {tabIndex: 0, role: 'group', ariaLabel: 'Code'});
    box.prepend(head);
  }
  return fragment;
}

// Shows a text that grows: only blocks from the first one that changed are made again.
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.blocks = [];  // {raw, node}
  }

  show(text) {
    const tokens = new Lexer(options).lex(text).filter((token) => token.type !== 'space');
    let same = 0;
    while (same < this.blocks.length && this.blocks[same].raw === tokens[same]?.raw) ++same;
    for (const block of this.blocks.splice(same)) block.node.remove();
    for (const token of tokens.slice(same)) {
      const node = make('div', 'block');
      node.append(complete(DOMPurify.sanitize(Parser.parse([token], options), kClean)));
      this.element.append(node);
      this.blocks.push({raw: token.raw, node});
    }
  }

  // All of it again: a link's target may stand below the link.
  finish(text) {
    this.blocks = [];
    this.element.replaceChildren();
    this.show(text);
  }
}
