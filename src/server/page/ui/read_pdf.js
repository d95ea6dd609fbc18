// The text of a PDF file by PDF.js, page by page. Scans have none.
import {count} from './format.js';
import * as pdfjs from './pdf.mjs';
import {entriesOf} from './zip.js';

pdfjs.GlobalWorkerOptions.workerSrc = '/ui/pdf.worker.mjs';

// Tables of Chinese, Japanese and Korean encodings, in one archive without compression, which is
// loaded for the first font that needs one.
class Tables {
  static #archive = null;

  static async #load() {
    const response = await fetch('/ui/cmaps.zip');
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    const data = new Uint8Array(await response.arrayBuffer());
    return {data, entries: entriesOf(data)};
  }

  async fetch({kind, filename}) {
    if (kind !== 'cMapUrl') throw new Error(`${filename} is not needed for text`);
    const {data, entries} = await (Tables.#archive ??= Tables.#load());
    const entry = entries.get(filename);
    if (entry === undefined) throw new Error(`there is no table ${filename}`);
    return data.slice(entry.begin, entry.begin + entry.size);
  }
}

// Lines as they stand, a blank one where the distance grows, words that a line's end has cut made whole.
function textOf(items) {
  let text = '', last = NaN;  // where the line before stands
  for (const {str, hasEOL, height, transform} of items) {
    if (str.trim() !== '') {
      const y = transform[5];
      if (text.endsWith('\n') && Math.abs(last - y) > 1.8 * height) text += '\n';
      last = y;
    }
    text += str + (hasEOL ? '\n' : '');
  }
  return text.replace(/[ \t]+\n/g, '\n').replace(/(\p{Ll})[-\u00ad]\n(\p{Ll})/gu, '$1$2').trim();
}

export async function read(data, say) {
  const task = pdfjs.getDocument({
    data, BinaryDataFactory: Tables, cMapUrl: '/ui/', cMapPacked: true, useWasm: false, useWorkerFetch: false, useSystemFonts: false, disableFontFace: true,
    enableXfa: false, isEvalSupported: false, verbosity: 0,
  });
  try {
    const pdf = await task.promise;
    const pages = [];
    for (let i = 1; i <= pdf.numPages; ++i) {
      say(`Reading page ${count(i)} of ${count(pdf.numPages)} …`);
      const page = await pdf.getPage(i);
      pages.push(textOf((await page.getTextContent()).items.filter((item) => item.str !== undefined)));
      page.cleanup();
    }
    const text = pages.filter((page) => page !== '').join('\n\n');
    if (text === '') throw new Error('it has no text; it may be a scan');
    return text;
  } catch (error) {
    throw error.name === 'PasswordException' ? new Error('it asks for a password') : error;
  } finally {
    await task.destroy();
  }
}
