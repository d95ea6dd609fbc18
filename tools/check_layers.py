#!/usr/bin/env python3
"""Checks the ladder of folders and the style rules that a program can check.

A folder of src/ may include only folders of a smaller rank (docs/architecture.md has the table), the
public headers include only each other, there are no include cycles, CUDA headers stay under */cuda/,
preprocessor conditions stay in one pair of files, and some headers of others are included through one
of ours (WRAPPED). Public headers have ranks, too: those that only hold values have the lowest, and the
roof (the classes that the engine implements) may be included only by the engine and by folders above
it. Files of src/ and include/ include nothing of ABOVE. Every op of src/ops states its contract: a
sentence and the slots of OP_SLOTS, none of them empty. Also: line length, file length, #pragma once,
and no absolute path of a developer's machine.

    python3 tools/check_layers.py [--root DIR]     prints one line per finding; exit 1 if there is one
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

RANKS = {"core": 0, "io": 1, "device": 1, "tokenizer": 2, "grammar": 2, "ops": 2, "kv": 3, "state": 3, "store": 3,
         "events": 3, "attention": 4, "model": 5, "engine": 6, "service": 7, "text": 8, "server": 9, "cli": 10}
# Programs and tests that stand on src/, which includes nothing of them.
ABOVE = ("eval/", "lab/", "tests/")
# Public headers that the engine implements; all others are values that every folder may include.
ROOF = {"include/sluice/llm.h", "include/sluice/inspect.h"}
ROOF_RANK = RANKS["engine"]
# Folders that a folder may not include although their rank is smaller: requests reach the engine
# through its service alone.
APART = {"server": {"engine"}}
# The document with the same ranks, one row for each folder.
TABLE = "docs/architecture.md"
TABLE_ROW = re.compile(r"^\| (\d+) \| `(\w+)/` \|", re.MULTILINE)
# The slots that an op's comment must have. Source is not required: most copies and lookups have none.
OP_SLOTS = ("Shapes", "Types", "Aliasing", "Order", "Errors")
CXX_SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".cuh"}
TEXT_SUFFIXES = CXX_SUFFIXES | {".py", ".sh", ".cmake", ".md", ".txt", ".json", ".html", ".svg"}
MAX_COLUMNS = 100
MAX_PYTHON_COLUMNS = 120
MAX_LINES = 450
# Headers that only one header of the tree may include, since it declares what must not be compiled again.
WRAPPED = {"nlohmann/json.hpp": "src/io/json_type.h"}
# Folders with code and scripts.
MADE_HERE = {"build", "out", "__pycache__"}
# The only file that may have preprocessor conditions.
CONDITIONAL_FILE = "src/device/debug_fill.h"
CUDA_HEADER = re.compile(r"(cuda|cublas|cudnn|nccl|nvml|nvtx|cub/|thrust/|mma\.h)")
# A header of contracts, not of a backend or of the references.
OP_HEADER = re.compile(r"src/ops/(?!cpu/|cuda/|reference/)(?:\w+/)?\w+\.h")
OP = re.compile(r"((?://.*\n)*)^\w[\w:<>]* (\w+)\(Stream& \w+,\s+const \w+Args& \w+\);", re.MULTILINE)
SLOT = re.compile(r"^// ([A-Z][a-z]+):(.*)$", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CONDITION = re.compile(r"^\s*#\s*(ifdef|ifndef|if|elif)\b", re.MULTILINE)
# Split so that this file does not report itself.
MACHINE_PATH = re.compile(r"(?<![\w.~/])/(?:wor[k]|hom[e]|roo[t]|Users|farm)/[A-Za-z]")


def git_files(root):
    """Files that git tracks or would track; None outside a checkout, or where there is no git."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return set(done.stdout.split("\0")) if done.returncode == 0 else None


def source_files(root):
    """The files of git; without git (an unpacked archive), all files except build outputs."""
    names = git_files(root)
    if names is None:
        names = (p.relative_to(root).as_posix() for p in root.rglob("*"))
        names = [name for name in names if not MADE_HERE.intersection(name.split("/"))]
    return sorted(name for name in names if (root / name).is_file())


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def folder_of(path):
    """The folder's name in the table of ranks: "kv" for src/kv/x.h, "sluice" for the public API."""
    parts = path.split("/")
    if len(parts) > 2 and parts[0] == "src":
        return parts[1]
    if path.startswith("include/sluice/"):
        return "sluice"
    return None


class Checker:
    """Collects findings over a set of files; `files` maps a path to its text."""

    def __init__(self, files):
        self.files = files
        self.findings = []
        self.edges = {}  # file -> project files that it includes

    def report(self, path, line, text):
        self.findings.append(f"{path}:{line}: {text}")

    def run(self):
        for path, text in self.files.items():
            self.check_text(path, text)
            if Path(path).suffix in CXX_SUFFIXES:
                self.check_includes(path, text)
                self.check_preprocessor(path, text)
                self.check_ops(path, text)
        self.check_targets()
        self.check_table()
        self.check_cycles()
        return self.findings

    def check_text(self, path, text):
        """Checks the length of lines and of the file, and absolute paths."""
        for match in MACHINE_PATH.finditer(text):
            self.report(path, line_of(text, match.start()), "absolute path of a machine")
        suffix = Path(path).suffix
        if suffix not in CXX_SUFFIXES | {".py", ".sh", ".cmake"}:
            return
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            self.report(path, len(lines), f"{len(lines)} lines; the limit is {MAX_LINES}")
        limit = MAX_PYTHON_COLUMNS if suffix == ".py" else MAX_COLUMNS
        for number, line in enumerate(lines, 1):
            if len(line) > limit:
                self.report(path, number, f"{len(line)} columns; the limit is {limit}")

    def check_includes(self, path, text):
        folder = folder_of(path)
        for match in INCLUDE.finditer(text):
            quoted, name = match.group(1) == '"', match.group(2)
            line = line_of(text, match.start())
            target = self.resolve(path, name, quoted)
            if target:
                self.edges.setdefault(path, []).append((target, line))
            if CUDA_HEADER.match(name) and "/cuda/" not in path and not target:
                self.report(path, line, f"<{name}> belongs under a cuda/ folder")
            if path != WRAPPED.get(name, path):
                self.report(path, line, f"include {WRAPPED[name]} instead of <{name}>")
            if folder:
                self.check_rank(path, line, folder, name)

    def resolve(self, path, name, quoted):
        """The project file that an include names, or None. Angle brackets find public headers only."""
        if not quoted:
            return "include/" + name if "include/" + name in self.files else None
        if path.startswith("include/"):
            beside = (Path(path).parent / name).as_posix()
            if beside in self.files:
                return beside
        for candidate in ("src/" + name, "include/" + name, name, "tests/" + name, "lab/kernels/" + name):
            if candidate in self.files:
                return candidate
        if path.startswith("src/") and (Path(path).parent / name).as_posix() in self.files:
            self.report(path, 1, f'"{name}" is written relative to src/')
        return None

    def check_rank(self, path, line, folder, name):
        """Checks the ranks of an include, for files of src/ and of the public API."""
        first = name.split("/")[0]
        if folder == "sluice":
            if first in RANKS:
                self.report(path, line, f'a public header may not include "{name}"')
            return
        if folder not in RANKS:
            self.report(path, line, f"src/{folder} has no rank; give it one in tools/check_layers.py")
            return
        if first in RANKS and first != folder and RANKS[first] >= RANKS[folder]:
            self.report(path, line, f'{folder} (rank {RANKS[folder]}) may not include "{name}" '
                                    f"(rank {RANKS[first]})")
        elif first in APART.get(folder, ()):
            self.report(path, line, f'{folder} may not include "{name}": {first} stays apart from it')

    def check_table(self):
        """Checks that the document has the ranks of this file."""
        if TABLE not in self.files:
            return
        written = {folder: int(rank) for rank, folder in TABLE_ROW.findall(self.files[TABLE])}
        for folder in sorted(RANKS.keys() | written.keys()):
            if RANKS.get(folder) != written.get(folder):
                self.report(TABLE, 1, f"rank of {folder}: {written.get(folder)} in the table, "
                                      f"{RANKS.get(folder)} in tools/check_layers.py")

    def check_targets(self):
        """Checks that depend on the included file: the roof, and files outside src/ and include/."""
        roof = self.roof()
        for path, targets in self.edges.items():
            folder = folder_of(path)
            for target, line in targets if folder else []:
                if target.startswith(ABOVE):
                    self.report(path, line, f"{target} stands above src/")
                if target in roof and RANKS.get(folder, ROOF_RANK) < ROOF_RANK:
                    self.report(path, line, f"{folder} (rank {RANKS[folder]}) may not include the "
                                            f"roof, {target} (rank {ROOF_RANK})")

    def roof(self):
        """ROOF, and the public headers that include it."""
        found = set()
        while True:
            more = {path for path, targets in self.edges.items() if path.startswith("include/")
                    and any(target in ROOF | found for target, _ in targets)}
            if more <= found:
                return ROOF | found
            found |= more

    def check_ops(self, path, text):
        """Checks the contract of every op of a public op header: a sentence, then the slots."""
        if not OP_HEADER.fullmatch(path):
            return
        for match in OP.finditer(text):
            comment, name = match.groups()
            line = line_of(text, match.start(2))
            found = SLOT.findall(comment)
            slots = dict(found)
            if len(found) > len(slots):
                self.report(path, line, f"{name} has a slot twice")
            if not comment or SLOT.match(comment):
                self.report(path, line, f"{name} has no sentence that says what it computes")
            for slot in OP_SLOTS:
                if not slots.get(slot, "").strip():
                    self.report(path, line, f'{name} has no words for the slot "{slot}:"')

    def check_preprocessor(self, path, text):
        if Path(path).suffix in {".h", ".cuh"} and not re.search(r"^#pragma once$", text, re.M):
            self.report(path, 1, "no #pragma once")
        if path == CONDITIONAL_FILE:
            return
        for match in CONDITION.finditer(text):
            self.report(path, line_of(text, match.start()),
                        f"#{match.group(1)} outside {CONDITIONAL_FILE}")

    def check_cycles(self):
        """Depth-first search over the includes; reports each cycle once, at the include that closes it."""
        done, stack = set(), []

        def visit(path):
            stack.append(path)
            for target, line in self.edges.get(path, []):
                if target in stack:
                    circle = " -> ".join(stack[stack.index(target):] + [target])
                    self.report(path, line, f"include cycle: {circle}")
                elif target not in done:
                    visit(target)
            stack.pop()
            done.add(path)

        for path in self.files:
            if path not in done:
                visit(path)


def read_tree(root):
    files = {}
    for name in source_files(root):
        path = root / name
        plain = path.suffix in TEXT_SUFFIXES or path.name in {"Makefile", "CMakeLists.txt", "run"}
        if plain and path.stat().st_size < 2 << 20:
            files[name] = path.read_text(encoding="utf-8", errors="replace")
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    files = read_tree(parser.parse_args().root)
    findings = Checker(files).run()
    for finding in findings:
        print(finding)
    print(f"check_layers: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
