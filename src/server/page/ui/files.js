// Text of a file: as it is, or of HTML, PDF and DOCX. What reads those is loaded when one is opened.
import {count} from './format.js';
import {invalidAt} from './text.js';

const beginsWith = (data, text) => [...text].every((c, i) => data[i] === c.charCodeAt(0));

const kinds = [
  {is: (data) => beginsWith(data, '%PDF-'), load: () => import('./read_pdf.js')},
  {
    is: (data, name) => beginsWith(data, 'PK\x03\x04') && name.endsWith('.docx'),
    load: () => import('./read_docx.js'),
  },
  {is: (data, name) => /\.x?html?$/.test(name), load: () => import('./read_html.js')},
];

function plainText(data, name) {
  const at = invalidAt(data);
  if (at >= 0) {
    throw new Error(`${name} is not UTF-8 text: byte ${count(at)} (offset 0x${at.toString(16)})`);
  }
  return new TextDecoder('utf-8').decode(data);
}

// {name, text, size}. `say`: called with how far it is.
export async function readFile(file, say) {
  const data = new Uint8Array(await file.arrayBuffer());
  const size = data.length;  // a reader may take the bytes away
  const kind = kinds.find(({is}) => is(data, file.name.toLowerCase()));
  let text;
  if (kind === undefined) {
    text = plainText(data, file.name);
  } else {
    try {
      text = await (await kind.load()).read(data, say);
    } catch (error) {
      throw new Error(`${file.name} cannot be read: ${error.message}`);
    }
  }
  text = text.replace(/\r\n?/g, '\n');
  if (text.trim() === '') throw new Error(`${file.name} has no text`);
  return {name: file.name, text, size};
}
