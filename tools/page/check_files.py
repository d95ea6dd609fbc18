"""Files that are no plain text: HTML, PDF and DOCX give the text that they show, or a sentence that says why not.

Called by check_page.py. The PDF is one that the browser prints, the DOCX an archive that is written here.
"""

import shutil
import zipfile

from playwright.sync_api import expect

from support import (ASK_CASTLE, CASTLE, LOOKS, Server, ask, check_axe, check_width, free_port, open_page, until,
                     upload, wait_ready)

HTML = f"""<!doctype html><html><head><title>Castles</title><meta charset="iso-8859-1">
<style>p {{ color: red }}</style><script>window.isHurt = true;</script></head>
<body><h1>The caf\xe9</h1><p style="margin: 0">One two
three.</p><ul><li>first</li><li>second <b>part</b></li></ul>
<img src="https://elsewhere.example/x.png" alt="a tower" onerror="window.isHurt = true">
<table><tr><th>name</th><th>number</th></tr><tr><td>castle</td><td>7</td></tr></table>
<pre>a
  b</pre><p>{CASTLE}</p></body></html>"""
HTML_TEXT = f"""# The caf\xe9

One two three.

- first
- second part

a tower

| name | number |
| castle | 7 |

```
a
  b
```

{CASTLE}"""

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
STYLES = f"""<?xml version="1.0"?><w:styles {WORD}><w:style w:styleId="berschrift1" w:type="paragraph">
<w:pPr><w:outlineLvl w:val="0"/></w:pPr></w:style></w:styles>"""
BODY = f"""<?xml version="1.0"?><w:document {WORD}><w:body>
<w:p><w:pPr><w:pStyle w:val="berschrift1"/></w:pPr><w:r><w:t>Castles &amp; towers</w:t></w:r></w:p>
<w:p><w:r><w:t xml:space="preserve">One </w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>
<w:ins><w:r><w:t>two</w:t><w:tab/><w:t>three</w:t></w:r></w:ins></w:p>
<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>first</w:t></w:r></w:p>
<w:p><w:pPr><w:numPr><w:ilvl w:val="1"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>second</w:t></w:r></w:p>
<w:tbl><w:tr><w:tc><w:p><w:r><w:t>name</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>a|b</w:t></w:r></w:p></w:tc></w:tr>
</w:tbl><w:p><w:r><w:t>{CASTLE}</w:t></w:r></w:p><w:sectPr/></w:body></w:document>"""
DOCX_TEXT = f"""# Castles & towers

One two\tthree

- first
  - second

| name | a\\|b |

{CASTLE}"""

# Two characters in a font that only its name and a table of PDF.js describe.
JAPANESE = [
    b"<< /Type /Catalog /Pages 2 0 R >>",
    b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 100] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >>",
    b"<< /Length 36 >>\nstream\nBT /F 12 Tf 9 9 Td <65E5672C> Tj ET  \nendstream",
    b"<< /Type /Font /Subtype /Type0 /BaseFont /Ryumin-Light /Encoding /UniJIS-UCS2-H /DescendantFonts [6 0 R] >>",
    b"<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Ryumin-Light /FontDescriptor 7 0 R /CIDSystemInfo"
    b" << /Registry (Adobe) /Ordering (Japan1) /Supplement 2 >> >>",
    b"<< /Type /FontDescriptor /FontName /Ryumin-Light /Flags 4 /FontBBox [0 0 1 1] /ItalicAngle 0 /Ascent 1"
    b" /Descent 0 /CapHeight 1 /StemV 1 >>",
]


def pdf_of(objects):
    data, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return data + b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1, table, len(objects) + 1, len(data))


KEPT = """async () => {
  const {key} = (await import('/ui/document.js')).current();
  return (await (await import('/ui/held.js')).textOf(key))?.text ?? null;
}"""


def kept_text(page):
    """The database takes the text after the page has shown its name."""
    until(page, lambda: page.evaluate(KEPT) is not None, "the text is not kept")
    return page.evaluate(KEPT)


class Files:
    def __init__(self, browser, server, folder):
        self.browser, self.server, self.folder = browser, server, folder

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def docx(self, name="castle.docx", body=BODY, packed=zipfile.ZIP_DEFLATED):
        path = self.folder / name
        with zipfile.ZipFile(path, "w", packed) as archive:
            archive.writestr("[Content_Types].xml", "<Types/>")
            archive.writestr("word/styles.xml", STYLES)
            archive.writestr("word/document.xml", body)
        return path

    def pdf(self):
        """Two pages as a browser prints them."""
        page = self.browser.new_page()
        page.set_content("<h1>A castle</h1><p>Efficient offices.</p>"
                         f"<p style='break-before: page'>{CASTLE}</p><p>The end.</p>")
        path = self.folder / "castle.pdf"
        page.pdf(path=path)
        page.close()
        return path

    def text_of(self, page, path):
        upload(page, path)
        expect(page.locator("#loaded")).to_be_visible()
        expect(page.locator("#doc-name")).to_have_text(path.name)
        text = kept_text(page)
        answer, _ = ask(page, ASK_CASTLE)
        assert "7391846" in answer, answer
        page.click("#clear")
        page.click("#remove")
        return text

    def refused(self, page, path, why):
        page.set_input_files("#file", path)
        expect(page.locator("#doc-error")).to_contain_text(why)
        expect(page.locator("#drop")).to_be_visible()

    def run(self, look):
        width, height, scheme = look
        page, watch, _ = open_page(self.browser, self.server, width, height, color_scheme=scheme)
        asked = []
        page.on("request", lambda request: asked.append(request.url.rsplit("/", 1)[1]))
        page.reload()
        wait_ready(page)
        assert not [name for name in asked if name.startswith(("read_", "pdf"))], f"too early: {asked}"
        text = self.text_of(page, self.write("castle.html", HTML.encode("latin-1")))
        assert text == HTML_TEXT, text
        assert not page.evaluate("() => window.isHurt"), "a file ran as script"
        for packed in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED):
            text = self.text_of(page, self.docx(packed=packed))
            assert text == DOCX_TEXT, text
        assert not [name for name in asked if name.startswith("pdf")], f"too early: {asked}"
        text = self.text_of(page, self.pdf())
        assert text == f"A castle\n\nEfficient offices.\n\n{CASTLE}\n\nThe end.", text
        assert "cmaps.zip" not in asked, f"too early: {asked}"
        upload(page, self.write("japanese.pdf", pdf_of(JAPANESE)))
        expect(page.locator("#doc-name")).to_have_text("japanese.pdf")
        text = kept_text(page)
        assert text == "\u65e5\u672c" and "cmaps.zip" in asked, (text, asked)
        page.click("#remove")
        watch.check()
        self.refuse(page)
        check_width(page)
        check_axe(page)
        watch.check("Applying inline style")  # in the browser's own words about XML that is none
        page.context.close()

    def refuse(self, page):
        self.refused(page, self.write("bad.pdf", b"%PDF-1.7\nnothing"), "bad.pdf cannot be read: ")
        self.refused(page, self.docx("other.docx", body="<w"), "word/document.xml is no XML")
        self.refused(page, self.write("cut.docx", self.docx().read_bytes()[:400]), "it may be damaged")
        self.refused(page, self.docx("large.docx", body="<a>" + " " * (65 << 20) + "</a>"), "larger than 64 MiB")
        self.refused(page, self.write("empty.html", b"<body><p> </p></body>"), "empty.html has no text")


def check_files(browser, folder):
    server = Server(free_port(), "--kv-cache-bytes", "128M")
    folder = folder / "files"
    folder.mkdir()
    try:
        for look in LOOKS[:2]:
            Files(browser, server, folder).run(look)
    finally:
        server.stop()
        shutil.rmtree(folder)
