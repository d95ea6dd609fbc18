"""Builds the plain-text corpus out of Debian packages.

Run first, on a Debian machine (apt and dpkg are used, nothing is installed). Downloads the
packages, unpacks them into the work folder, cleans every source to paragraphs and writes one text
file per source, plus the held-out text (`heldout.txt`: all of Northanger Abbey) of which
`models/needle/haystack.txt` is the first part.

    python3 corpus.py --work ../../.train --model ../../models/needle
"""

import argparse
import html.parser
import re
import struct
import subprocess
import unicodedata
import zlib
from pathlib import Path

PACKAGES = [
    "r-cran-janeaustenr",  # six novels of Jane Austen: public domain (the R package itself: MIT)
    "bible-kjv-text",  # King James Version: public domain
    "bible-kjv",  # the program that prints the text above
    "python3.11-doc",  # Python documentation: PSF licence
    "postgresql-doc-15",  # PostgreSQL documentation: PostgreSQL licence
    "linux-doc-6.1",  # Linux kernel documentation: GPL-2
    "debian-handbook",  # GPL-2+ or CC-BY-SA-3.0
    "debian-reference-en",  # GPL-2+
    "developers-reference",  # GPL-2+
    "debian-faq",  # GPL-2+
]
HELD_OUT_NOVEL = "NORTHANGER ABBEY"
HAYSTACK_BYTES = 280_000


def download(work: Path) -> dict[str, Path]:
    """Fetches and unpacks the packages; returns package name -> unpacked root."""
    debs, unpacked = work / "deb", work / "unpacked"
    debs.mkdir(parents=True, exist_ok=True)
    roots = {}
    for name in PACKAGES:
        found = sorted(debs.glob(f"{name}_*.deb"))
        if not found:
            subprocess.run(["apt-get", "download", name], cwd=debs, check=True)
            found = sorted(debs.glob(f"{name}_*.deb"))
        roots[name] = unpacked / name
        if not roots[name].exists():
            roots[name].mkdir(parents=True)
            subprocess.run(["dpkg", "-x", str(found[-1]), str(roots[name])], check=True)
        print(found[-1].name)
    return roots


def clean(paragraphs: list[str]) -> str:
    """One line per paragraph, blank line between, plain quotes and dashes, single spaces."""
    table = str.maketrans(
        {
            "\u2018": "'",
            "\u2019": "'",
            "\u201c": '"',
            "\u201d": '"',
            "\u2013": "-",
            "\u2014": "-",
            "\u00a0": " ",
            "\u200b": "",
            "\u00ad": "",
        }
    )
    out = []
    for paragraph in paragraphs:
        text = unicodedata.normalize("NFC", " ".join(paragraph.translate(table).split()))
        text = re.sub(r"\s*--+\s*", " - ", text).strip()
        if len(text) >= 40 and sum(c.isalpha() or c == " " for c in text) > 0.8 * len(text):
            out.append(text)
    return "\n\n".join(out) + "\n"


def novels(root: Path) -> dict[str, str]:
    """Reads R's lazy-load database: [size, zlib] chunks of lines in XDR serialisation."""
    data = next(root.rglob("Rdata.rdb")).read_bytes()
    texts, offset = {}, 0
    while offset < len(data):
        stream = zlib.decompressobj()
        chunk = stream.decompress(data[offset + 4 :])
        offset = len(data) - len(stream.unused_data)
        lines, at = [], 31  # 14 bytes header, 4 + 5 encoding, 8 vector flags and length
        while at + 8 <= len(chunk):
            size = struct.unpack(">i", chunk[at + 4 : at + 8])[0]
            lines.append(chunk[at + 8 : at + 8 + size].decode("utf-8"))
            at += 8 + size
        body = "\n".join(lines).split("\n\n")
        texts[lines[0].upper()] = clean([p.replace("_", "") for p in body])
    return texts


def bible(roots: dict[str, Path]) -> str:
    """One paragraph per run of verses; references removed."""
    program = next((roots["bible-kjv"]).rglob("bin/bible"))
    folder = next(roots["bible-kjv-text"].rglob("bible.data")).parent
    printed = subprocess.run(
        [str(program), "-p", str(folder), "-f", "gen1:1-rev22:21"],
        capture_output=True,
        text=True,
        check=True,
        errors="replace",
    ).stdout
    verses = [
        re.sub(r"^\S+ ", "", line)
        for line in printed.splitlines()
        if re.match(r"^\w+\d+:\d+ ", line)
    ]
    return clean([" ".join(verses[i : i + 6]) for i in range(0, len(verses), 6)])


def restructured_text(root: Path) -> str:
    """Prose of English reStructuredText sources: paragraphs without roles and marks."""
    paragraphs = []
    for path in sorted(root.rglob("*.rst.txt")):
        if "translations" in path.parts:
            continue
        for block in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            text = re.sub(r":[\w:+-]+:`([^`<]*?)\s*(<[^`]*>)?`", r"\1", block)
            text = re.sub(r"[`*]+|\s*<[^>]*>_*", "", text).strip().replace("~", "")
            if (
                re.match(r"^(\.\.|>>>|\||:|\+|=|#|def |class )", text)
                or "::" in text
                or ">>>" in text
            ):
                continue
            if text.endswith((".", ":", "?", "!")) and text[0].isalpha() and text[0].isupper():
                paragraphs.append(text)
    return clean(list(dict.fromkeys(paragraphs)))


class ParagraphParser(html.parser.HTMLParser):
    """Collects the text of <p> and <div class="para"> elements."""

    def __init__(self):
        super().__init__()
        self.paragraphs, self.parts = [], None

    def handle_starttag(self, tag, attrs):
        if tag == "p" or (tag == "div" and ("class", "para") in attrs):
            self.flush()
            self.parts = []
        elif tag == "pre":
            self.parts = None

    def handle_endtag(self, tag):
        if tag in ("p", "div"):
            self.flush()

    def handle_data(self, data):
        if self.parts is not None:
            self.parts.append(data)

    def flush(self):
        if self.parts:
            self.paragraphs.append("".join(self.parts))
        self.parts = None


def web_pages(root: Path, pattern: str) -> str:
    """Prose of HTML pages, repeated paragraphs (navigation, notices) kept once."""
    paragraphs = []
    for path in sorted(root.rglob("*.html")):
        if re.search(pattern, str(path.relative_to(root))):
            parser = ParagraphParser()
            parser.feed(path.read_text(encoding="utf-8", errors="replace"))
            parser.flush()
            paragraphs += [" ".join(p.split()) for p in parser.paragraphs]
    return clean([p for p in dict.fromkeys(paragraphs) if p.endswith((".", ":", "?", "!"))])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for everything large")
    parser.add_argument(
        "--model", type=Path, required=True, help="model directory that gets haystack.txt"
    )
    args = parser.parse_args()
    roots = download(args.work)
    books = novels(roots["r-cran-janeaustenr"])
    held_out = books.pop(HELD_OUT_NOVEL)
    texts = {
        "austen": "\n".join(books.values()),
        "bible": bible(roots),
        "python": restructured_text(roots["python3.11-doc"]),
        "linux": restructured_text(roots["linux-doc-6.1"]),
        "postgresql": web_pages(roots["postgresql-doc-15"], r"\.html$"),
        "handbook": web_pages(roots["debian-handbook"], r"html/en-US/"),
        "reference": web_pages(roots["debian-reference-en"], r"\.en\.html$"),
        "developers": web_pages(
            roots["developers-reference"], r"developers-reference/[^/]*\.html$"
        ),
        "faq": web_pages(roots["debian-faq"], r"\.en\.html$"),
    }
    corpus = args.work / "corpus"
    corpus.mkdir(exist_ok=True)
    for name, text in texts.items():
        (corpus / f"{name}.txt").write_text(text)
        print(f"{name:12} {len(text.encode()):9} bytes")
    # The first two paragraphs are the author's advertisement; the story starts after them.
    story = held_out[held_out.index("No one who had ever seen Catherine Morland") :]
    (args.work / "heldout.txt").write_text(story)
    cut = story.rindex("\n\n", 0, HAYSTACK_BYTES)
    args.model.mkdir(parents=True, exist_ok=True)
    (args.model / "haystack.txt").write_text(story[:cut] + "\n")
    print(f"held out {len(story)} bytes, haystack.txt {cut} bytes")


if __name__ == "__main__":
    main()
