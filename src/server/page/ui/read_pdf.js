// The text of a PDF file by PDF.js, page by page. Scans have none; fonts that need the tables of
// Chinese, Japanese and Korean encodings, which are not embedded here, give none either.
import {count} from './format.js';
import * as pdfjs from './pdf.mjs';

pdfjs.GlobalWorkerOptions.workerSrc = '/ui/pdf.worker.mjs';

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
    data, useWasm: false, useWorkerFetch: false, useSystemFonts: false, disableFontFace: true,
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
