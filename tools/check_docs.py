#!/usr/bin/env python3
"""Checks the links of the documents and runs the commands that they show.

A fenced block whose opening line is ```sh run``` (or ```sh run exit=3```) is run by bash in the
repository's root, with the program of the release build on the PATH; it must end with status 0 (or
the one given). A block ```text printed``` right behind it has what its standard output must end with.
Blocks that say only ```sh``` are not run. Every command of our programs that a document names, in a block
or between backquotes, must be one that the program has: `sluice bench decode`, not `sluice bench encode`.
Links to files of the repository must name a file that exists and, behind a #, one of its headings.

    python3 tools/check_docs.py [--build build/release] [FILES]
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```sh run(?: exit=(\d+))?\n(.*?)^```$(?:\n+^```text printed\n(.*?)^```$)?",
                   re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
# "sluice bench decode --model DIR": the program and the words before its options.
COMMAND = re.compile(r"(?:^|`|\$ )(?:build/\w+/)?(sluice(?:-[a-z]+)?)((?: [a-z]+)*)", re.MULTILINE)
GROUPS = (("sluice", "bench"), ("sluice", "store"))  # commands of two words
TIMEOUT_SECONDS = 600


def documents():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md",
            *sorted((ROOT / "docs").rglob("*.md")),
            *sorted((ROOT / "models").rglob("*.md")), ROOT / "tests/golden/README.md"]


def blocks(path):
    """Line, expected status, commands and printed text (None: any) of each block to run."""
    text = path.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, int(match.group(1) or 0), match.group(2), match.group(3)


def anchor(heading):
    """The anchor that GitHub gives to a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    return {anchor(line.lstrip("#")) for line in path.read_text(encoding="utf-8").splitlines()
            if line.startswith("#")}


def broken_links(path):
    """Line and target of each link to a missing file or heading."""
    text = path.read_text(encoding="utf-8")
    for match in LINK.finditer(text):
        name, heading = match.groups()
        if re.match(r"[a-z]+:", name):
            continue
        target = path.parent / name if name else path
        missing = not target.exists()
        if not missing and heading and target.suffix == ".md":
            missing = heading not in anchors(target)
        if missing:
            yield text.count("\n", 0, match.start()) + 1, match.group(0)[2:-1]


def commands_named(path):
    """Line, program and command of each command of ours in a document."""
    text = path.read_text(encoding="utf-8")
    for match in COMMAND.finditer(text):
        program, words = match.group(1), match.group(2).split()
        if words and words[0] != "help":
            yield (text.count("\n", 0, match.start()) + 1, program,
                   tuple(words[:2] if (program, words[0]) in GROUPS else words[:1]))


def unknown_commands(files, environment):
    """A line for each command that a document names and no program has."""
    known = {}  # command -> whether its help can be printed
    for path in files:
        for line, program, command in commands_named(path):
            call = (program, *command, "--help")
            if call not in known:
                known[call] = subprocess.run(["bash", "-c", " ".join(call)], env=environment, check=False,
                                             capture_output=True).returncode == 0
            if not known[call]:
                yield f"{os.path.relpath(path, ROOT)}:{line}: no command {' '.join(call[:-1])}"


def run_block(path, line, expected, commands, printed, environment):
    start = time.monotonic()
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    says_so = printed is None or done.stdout.rstrip().endswith(printed.rstrip())
    passed = done.returncode == expected and says_so
    name = f"{os.path.relpath(path, ROOT)}:{line}"
    print(f"{'passed' if passed else 'FAILED'} {name} ({time.monotonic() - start:.1f} s)")
    if not passed:
        print(f"  exit status {done.returncode}, expected {expected}")
        if not says_so:
            print("  the document says that it prints\n  " + "\n  ".join(printed.splitlines()))
        print("  " + "\n  ".join((commands + done.stdout + done.stderr).splitlines()[-30:]))
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    environment = dict(os.environ, PATH=f"{args.build.resolve()}:{os.environ['PATH']}")
    files = [p for p in ([p.resolve() for p in args.files] or documents()) if p.exists()]
    broken = [f"{os.path.relpath(path, ROOT)}:{line}: nothing is at {target}"
              for path in files for line, target in broken_links(path)]
    unknown = list(unknown_commands(files, environment))
    for line in broken + unknown:
        print(line)
    results = [run_block(path, *block, environment) for path in files for block in blocks(path)]
    print(f"check_docs: {sum(results)} passed, {len(results) - sum(results)} failed, "
          f"{len(broken)} broken links, {len(unknown)} unknown commands")
    return 0 if all(results) and not broken and not unknown else 1


if __name__ == "__main__":
    sys.exit(main())
