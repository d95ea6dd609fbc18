// Where the members of a ZIP archive lie.

// {method, begin, size} by name, of the archive's central directory.
export function entriesOf(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let end = data.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) --end;
  if (end < 0) throw new Error('its archive has no directory; it may be damaged');
  const entries = new Map();
  let at = view.getUint32(end + 16, true);
  for (let i = view.getUint16(end + 10, true); i > 0; --i) {
    if (view.getUint32(at, true) !== 0x02014b50) throw new Error('the directory of its archive is damaged');
    const [nameLength, extra, comment] = [28, 30, 32].map((offset) => view.getUint16(at + offset, true));
    const name = new TextDecoder().decode(data.subarray(at + 46, at + 46 + nameLength));
    const local = view.getUint32(at + 42, true);
    const begin = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    entries.set(name, {method: view.getUint16(at + 10, true), begin, size: view.getUint32(at + 20, true)});
    at += 46 + nameLength + extra + comment;
  }
  return entries;
}
