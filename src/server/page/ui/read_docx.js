// The text of a DOCX file: paragraphs, headings, lists and tables. Its archive is unpacked by the
// browser's own inflate, its XML parsed by the browser; notes, comments and what was deleted are left out.
import {entriesOf} from './zip.js';

const kMaxBytes = 64 << 20;  // of a part: an archive may pretend to be small
const kWord = 'http://schemas.openxmlformats.org/wordprocessingml/2006/main';
const kStrictWord = 'http://purl.oclc.org/ooxml/wordprocessingml/main';

async function partOf(data, entry, name) {
  const bytes = data.subarray(entry.begin, entry.begin + entry.size);
  if (entry.method !== 0 && entry.method !== 8) throw new Error(`${name} is packed in a way that is not known`);
  let stream = new Blob([bytes]).stream();
  if (entry.method === 8) stream = stream.pipeThrough(new DecompressionStream('deflate-raw'));
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let text = '';
  for (let size = 0;;) {
    const {value, done} = await reader.read();
    if (done) break;
    size += value.length;
    if (size > kMaxBytes) throw new Error(`${name} is larger than ${kMaxBytes >> 20} MiB`);
    text += decoder.decode(value, {stream: true});
  }
  const parsed = new DOMParser().parseFromString(text + decoder.decode(), 'application/xml');
  if (parsed.querySelector('parsererror')) throw new Error(`${name} is no XML`);
  return parsed;
}

const isWord = (node) => node.namespaceURI === kWord || node.namespaceURI === kStrictWord;
const tagOf = (node) => isWord(node) ? node.localName : node.localName === 'Fallback' ? 'Fallback' : '';
const childOf = (node, tag) => [...(node?.children ?? [])].find((child) => tagOf(child) === tag);
const valueOf = (node) => node === undefined ? undefined
    : node.getAttributeNS(kWord, 'val') ?? node.getAttributeNS(kStrictWord, 'val');

// Levels of headings by the ids of styles, whose names are of the writer's language.
function levelsOf(styles) {
  const levels = new Map();
  for (const style of styles?.documentElement.children ?? []) {
    const level = valueOf(childOf(childOf(style, 'pPr'), 'outlineLvl'));
    const id = style.getAttributeNS(kWord, 'styleId') ?? style.getAttributeNS(kStrictWord, 'styleId');
    if (level !== undefined && Number(level) < 6) levels.set(id, Number(level) + 1);
  }
  return levels;
}

function inlineText(node) {
  return [...node.children].map((child) => {
    switch (tagOf(child)) {
      case 't': return child.textContent;
      case 'tab': return '\t';
      case 'br': case 'cr': return '\n';
      case 'noBreakHyphen': return '-';
      case 'pPr': case 'rPr': case 'del': case 'moveFrom': case 'instrText': case 'Fallback': return '';
      case 'p': return `\n${inlineText(child)}\n`;  // of a text box
      default: return inlineText(child);
    }
  }).join('');
}

function paragraph(node, levels) {
  const text = inlineText(node).trim();
  if (text === '') return '';
  const format = childOf(node, 'pPr');
  const own = valueOf(childOf(format, 'outlineLvl'));
  const level = own === undefined ? levels.get(valueOf(childOf(format, 'pStyle'))) : Number(own) + 1;
  if (level >= 1 && level <= 6) return `${'#'.repeat(level)} ${text.replace(/\n/g, ' ')}`;
  const list = childOf(format, 'numPr');
  if (list === undefined) return text;
  return `${'  '.repeat(Number(valueOf(childOf(list, 'ilvl')) ?? 0))}- ${text}`;
}

function table(node, levels) {
  const rows = [...node.children].filter((row) => tagOf(row) === 'tr').map((row) => {
    const cells = [...row.children].filter((cell) => tagOf(cell) === 'tc');
    return `| ${cells.map((cell) => blocks(cell, levels).replace(/\s+/g, ' ').replace(/\|/g, '\\|')).join(' | ')} |`;
  });
  return rows.join('\n');
}

function blocks(node, levels) {
  let text = '', wasItem = false;
  for (const child of node.children) {
    const tag = tagOf(child);
    const part = tag === 'p' ? paragraph(child, levels) : tag === 'tbl' ? table(child, levels)
        : tag === 'sectPr' || tag === 'Fallback' ? '' : blocks(child, levels);
    if (part === '') continue;
    const isItem = /^ *- /.test(part);
    text += (text === '' ? '' : isItem && wasItem ? '\n' : '\n\n') + part;
    wasItem = isItem;
  }
  return text;
}

export async function read(data) {
  const entries = entriesOf(data);
  const main = entries.get('word/document.xml');
  if (main === undefined) throw new Error('it has no word/document.xml; is it a Word document?');
  const styles = entries.get('word/styles.xml');
  const levels = levelsOf(styles && await partOf(data, styles, 'word/styles.xml'));
  const body = childOf((await partOf(data, main, 'word/document.xml')).documentElement, 'body');
  return body === undefined ? '' : blocks(body, levels);
}
