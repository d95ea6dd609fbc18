// Text of files and of tokens: strict UTF-8, and where in a document each token is.

// The offset of the first byte that is not UTF-8, or -1. Overlong forms and surrogates count.
export function invalidAt(bytes) {
  for (let i = 0; i < bytes.length;) {
    const b = bytes[i];
    if (b < 0x80) {
      ++i;
      continue;
    }
    const size = b >= 0xc2 && b < 0xe0 ? 2 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xf0 && b < 0xf5 ? 4 : 0;
    if (size === 0) return i;
    for (let k = 1; k < size; ++k) {
      const next = bytes[i + k];
      let low = 0x80, high = 0xbf;
      if (k === 1 && b === 0xe0) low = 0xa0;
      if (k === 1 && b === 0xed) high = 0x9f;
      if (k === 1 && b === 0xf0) low = 0x90;
      if (k === 1 && b === 0xf4) high = 0x8f;
      if (next === undefined || next < low || next > high) return i;
    }
    i += size;
  }
  return -1;
}

// Maps token positions of a prompt to places in its document. `starts[i]`: where token i begins in
// the prompt's text; without it (long documents) places are in proportion.
export class TokenPlaces {
  constructor({numTokens, textLength, starts = null, textBegin = 0}) {
    this.numTokens = numTokens;
    this.textLength = textLength;
    this.starts = starts;
    this.textBegin = textBegin;
  }

  charOf(token) {
    if (token <= 0) return 0;
    const at = this.starts
        ? (this.starts[Math.min(token, this.starts.length - 1)] - this.textBegin)
        : Math.round(token / this.numTokens * this.textLength);
    return Math.max(0, Math.min(this.textLength, at));
  }
}

export function startsOf(strings) {
  const starts = new Uint32Array(strings.length + 1);
  for (let i = 0; i < strings.length; ++i) starts[i + 1] = starts[i] + strings[i].length;
  return starts;
}
