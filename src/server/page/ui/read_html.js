// The text of an HTML file, with headings, lists and tables as Markdown has them. The parsed document
// is inert: its scripts do not run, and nothing of it is loaded or shown.
const kSkipped = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'SVG', 'IFRAME', 'OBJECT']);
const kBlocks = new Set(['P', 'DIV', 'SECTION', 'ARTICLE', 'MAIN', 'HEADER', 'FOOTER', 'NAV', 'ASIDE', 'UL',
                         'OL', 'DL', 'TABLE', 'FIGURE', 'BLOCKQUOTE', 'FORM', 'DETAILS', 'HR', 'BODY']);
const kLines = new Set(['DT', 'DD', 'SUMMARY', 'FIGCAPTION', 'CAPTION', 'ADDRESS', 'OPTION']);

function textOf(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.data.replace(/\s+/g, ' ');
  if (node.nodeType !== Node.ELEMENT_NODE || kSkipped.has(node.tagName.toUpperCase())) return '';
  const tag = node.tagName;
  if (tag === 'BR') return '\n';
  if (tag === 'IMG') return node.alt;
  if (tag === 'PRE') return `\n\n\`\`\`\n${node.textContent.replace(/\n$/, '')}\n\`\`\`\n\n`;
  const inner = [...node.childNodes].map(textOf).join('');
  const flat = inner.replace(/\s+/g, ' ').trim();
  if (/^H[1-6]$/.test(tag)) return `\n\n${'#'.repeat(Number(tag[1]))} ${flat}\n\n`;
  if (tag === 'LI') return `\n- ${inner.trim().replace(/\n+/g, '\n  ')}`;
  if (tag === 'TD' || tag === 'TH') return `| ${flat} `;
  if (tag === 'TR') return `\n${inner.trim()} |`;
  if (kBlocks.has(tag)) return `\n\n${inner}\n\n`;
  return kLines.has(tag) ? `\n${inner}\n` : inner;
}

// As the file says, or else UTF-8.
function decode(data) {
  const head = new TextDecoder('latin1').decode(data.subarray(0, 2048));
  const label = /<meta[^>]+charset\s*=\s*["']?\s*([\w-]+)/i.exec(head)?.[1] ?? 'utf-8';
  try {
    return new TextDecoder(label).decode(data);
  } catch {
    throw new Error(`its encoding ${label} is not known`);
  }
}

// The page's policy forbids these also in a document that is not shown, and the browser would report each.
function withoutStyle(html) {
  return html.replace(/<(style|script)\b[^>]*>[\s\S]*?<\/\1\s*>/gi, '')
      .replace(/<[a-z](?:"[^"]*"|'[^']*'|[^>"'])*>/gi, (tag) =>
        tag.replace(/\s(?:style|on\w+)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+)/gi, ''));
}

export async function read(data) {
  const parsed = new DOMParser().parseFromString(withoutStyle(decode(data)), 'text/html');
  const lines = textOf(parsed.body).split('\n');
  let isCode = false;
  const clean = lines.map((line) => {
    if (line === '```') isCode = !isCode;
    return isCode ? line : line.replace(/^ +(?!- )| +$/g, '');
  });
  return clean.join('\n').replace(/\n{3,}/g, '\n\n').trim();
}
