"""Folders of source distributions on PyPI, which are unpacked outside of the repository and never copied into it.

pip cannot fetch an sdist without building it, and these need CMake or PyTorch for that. So this asks the index as pip
does (PEP 691), at PIP_INDEX_URL if that is set. Standard library only.

    python3 tools/sdist.py PROJECT VERSION SHA256 ROOT PREFIX...   prints the folder under ROOT; exit 75 without PyPI
"""

import hashlib
import json
import os
import pathlib
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
ACCEPT = "application/vnd.pypi.simple.v1+json"
SECONDS = 60


class Unreachable(Exception):
    """PyPI cannot be asked, or does not have the file. The text is for the user."""


def get(url, accept="*/*"):
    request = urllib.request.Request(url, headers={"Accept": accept})
    return urllib.request.urlopen(request, timeout=SECONDS)


def url_of(project, filename):
    with get(f"{INDEX}/{project}/", ACCEPT) as answer:
        files = json.load(answer)["files"]
    found = [file["url"] for file in files if file["filename"] == filename]
    if not found:
        raise Unreachable(f"{INDEX} has no {filename}")
    return urllib.request.urljoin(f"{INDEX}/{project}/", found[0])


def download(project, filename, sha256, target):
    digest = hashlib.sha256()
    with get(url_of(project, filename)) as answer:
        while piece := answer.read(1 << 20):
            digest.update(piece)
            target.write(piece)
    if digest.hexdigest() != sha256:
        raise ValueError(f"{filename} has sha256 {digest.hexdigest()}, want {sha256}: damaged, or another file")
    target.seek(0)


def unpack(archive, prefixes, folder):
    """The regular files under the prefixes, which are relative to the archive's one folder."""
    with tarfile.open(fileobj=archive, mode="r:gz") as members:
        for member in members:
            path = member.name.partition("/")[2]
            if not member.isfile() or not path.startswith(tuple(prefixes)) or ".." in path.split("/"):
                continue
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with members.extractfile(member) as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)


def suites_root():
    """Where the tests of other servers are kept."""
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice-clients"
    return pathlib.Path(os.environ.get("CLIENTS_DIR", default)) / "suites"


def folder_of(project, version, sha256, prefixes, root=None):
    """Where the files lie: unpacked once, and again when what is asked for changes. Raises Unreachable."""
    filename = f"{project.replace('-', '_')}-{version}.tar.gz"
    root = root or suites_root()
    folder, wanted = root / project, json.dumps([filename, sha256, prefixes])
    stamp = root / f"{project}.json"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return folder
    root.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    print(f"fetching {filename}", file=sys.stderr, flush=True)
    with tempfile.TemporaryFile() as archive, tempfile.TemporaryDirectory(dir=root) as made:
        try:
            download(project, filename, sha256, archive)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise Unreachable(f"{filename} could not be fetched: {error}") from error
        unpack(archive, prefixes, pathlib.Path(made))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)
    stamp.write_text(wanted, encoding="utf-8")
    return folder


def main():
    project, version, sha256, root, *prefixes = sys.argv[1:]
    try:
        print(folder_of(project, version, sha256, prefixes, pathlib.Path(root)))
    except Unreachable as error:
        print(f"sdist.py: {error}", file=sys.stderr)
        return 75
    return 0


if __name__ == "__main__":
    sys.exit(main())
