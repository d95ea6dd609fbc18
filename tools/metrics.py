#!/usr/bin/env python3
"""Prints metrics of the source tree, each with its limit.

    python3 tools/metrics.py [--root DIR] [--check] [--worst N]

The metrics:

- include cycles, upward includes: findings of tools/check_layers.py, public headers counted.
- function length: lines from the first of the signature to the closing brace, of functions of src/,
  include/, eval/ and lab/, but not lab/kernels/, that run on the host (nothing under cuda/). A lambda
  belongs to its function.
- files: C++, CUDA, Python and shell of the whole tree; lines as `wc -l` counts them.
- folders: files that lie directly in a folder of src/, include/, eval/, lab/, tests/ or tools/.
- comments: lines of the same folders with a comment over lines with code; a line with both is both.
- files per op: C++ files of src/ops that name the op or its arguments, and one test, without source
  lists. The median over all ops, since large ones have several kernels and helpers.

After them, numbers to look at, without a limit: files of src/ and their median length, the class with
the most public functions, lines that name Phase outside the scheduler, headers that one file includes,
and how many product files each of the last five commits to CHANGELOG.md touched.

With --check the exit status is 1 when a number is past its limit. --worst N names the N worst.
"""

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

from check_layers import CXX_SUFFIXES, OP, OP_HEADER, Checker, read_tree

FOLDERS = ("src/", "include/", "eval/", "lab/", "tests/", "tools/")
# Text before a brace that does not open a function: a scope, or a value.
SCOPE = re.compile(r"^(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b")
TEMPLATE = re.compile(r"^template\s*<")
SPACE = re.compile(r"\s+")
# Comments, literals and preprocessor lines. An earlier alternative wins where several match.
TOKEN = re.compile(r'''//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'''
                   r"""(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*""",
                   re.DOTALL | re.MULTILINE)


def blank(match):
    """Replaces a token by spaces but keeps its line ends, so that lines keep their numbers."""
    return re.sub(r"[^\n]", " ", match.group(0))


def code_of(text):
    return TOKEN.sub(blank, text)


def comments_of(text):
    """The text with everything except comments replaced by spaces."""
    def keep(match):
        return match.group(0) if match.group(0).startswith(("//", "/*")) else blank(match)
    spans, end = [], 0
    for match in TOKEN.finditer(text):
        spans += [re.sub(r"[^\n]", " ", text[end:match.start()]), keep(match)]
        end = match.end()
    return "".join(spans) + re.sub(r"[^\n]", " ", text[end:])


def without_template(head):
    """The declaration after its template<...>, whose parameters may contain the word class."""
    while TEMPLATE.match(head):
        depth, end = 0, len(head)
        for i, char in enumerate(head):
            depth += (char == "<") - (char == ">")
            if char == ">" and depth == 0:
                end = i + 1
                break
        head = head[end:].lstrip()
    return head


def opens_function(head):
    """Whether a brace after `head`, in a scope with declarations, opens the body of a function."""
    if not head or head[-1] not in " \n":
        return False  # clang-format puts no space before a brace that initialises
    head = without_template(SPACE.sub(" ", head).strip())
    if not head or SCOPE.match(head) or head[-1] in "=(,{[<":
        return False
    return "(" in head


def functions(text):
    """Name, first line and number of lines of each function that a C++ file defines."""
    code = code_of(text)
    found, scopes = [], []  # scopes: for each open brace, None or the start of the function's signature
    start = 0               # start of the current declaration
    for match in re.finditer(r"[{};]|\b(?:public|private|protected)\s*:", code):
        char, at = match.group(0), match.start()
        inside = any(scope is not None for scope in scopes)
        if char == "{":
            head = code[start:at]
            if inside:
                scopes.append(None)
            elif opens_function(head):
                scopes.append(start + len(head) - len(head.lstrip()))
            else:
                scopes.append(None)
                if head and head[-1] not in " \n":
                    continue  # a value in a declaration (int x{1}) or in a constructor's initialisers
        elif char == "}" and scopes:
            begin = scopes.pop()
            if begin is not None:
                name = re.search(r"([\w:~]+|operator\W+)\s*\(", code[begin:at])
                first = code.count("\n", 0, begin) + 1
                found.append((name.group(1) if name else "?", first,
                              code.count("\n", 0, at) + 2 - first))
            elif not inside and code[at - 1] not in " \n":
                continue
        if not any(scope is not None for scope in scopes):
            start = match.end()
    return found


def is_cxx(path):
    return Path(path).suffix in CXX_SUFFIXES


def is_house(path):
    return path.startswith(("src/", "include/", "eval/", "lab/")) and not path.startswith("lab/kernels/")


def folder_counts(files):
    counts = {}
    for path in files:
        if path.startswith(FOLDERS):
            folder = Path(path).parent.as_posix()
            counts[folder] = counts.get(folder, 0) + 1
    return counts


def op_counts(files):
    """Op -> number of its files: those of src/ops that name it, and one test."""
    near = {path: code_of(text) for path, text in files.items() if is_cxx(path)
            and path.startswith(("src/ops/", "tests/ops/"))}
    counts = {}
    for path in near:
        if not OP_HEADER.fullmatch(path):
            continue
        for match in OP.finditer(files[path]):
            arguments = re.search(r"const (\w+Args)&", match.group(0)).group(1)
            named = re.compile(rf"\b(?:{match.group(2)}\s*\(|{arguments}\b)")
            touched = [p for p, code in near.items() if named.search(code)]
            is_tested = any(p.startswith("tests/") for p in touched)
            counts[match.group(2)] = sum(p.startswith("src/") for p in touched) + is_tested
    return counts


def percentile(numbers, share):
    """The smallest of the numbers that is not below `share` of them."""
    ordered = sorted(numbers)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else 0


class Metric:
    """A number, its limit, and its worst cases."""

    def __init__(self, name, value, limit, worst=(), at_least=False):
        self.name, self.value, self.limit = name, value, limit
        self.worst, self.at_least = list(worst), at_least

    def holds(self):
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self):
        value = f"{self.value:.3f}" if isinstance(self.value, float) else str(self.value)
        sign = ">=" if self.at_least else "<="
        return f"{'ok ' if self.holds() else 'NOT'} {self.name:34} {value:>8}   {sign} {self.limit}"


def ranked(pairs):
    """Lines "number what", largest first."""
    return [f"{number:6} {what}" for number, what in sorted(pairs, key=lambda p: (-p[0], p[1]))]


def layer_metrics(files):
    findings = Checker(files).run()
    cycles = [f for f in findings if "include cycle" in f]
    upward = [f for f in findings if re.search(r"may not include|stands above", f)]
    return [Metric("include cycles", len(cycles), 0, cycles),
            Metric("upward includes", len(upward), 0, upward)]


def function_metrics(files):
    lengths = [(lines, f"{path}:{first} {name}") for path, text in files.items()
               if is_cxx(path) and is_house(path) and "/cuda/" not in path
               for name, first, lines in functions(text)]
    worst = ranked(lengths)
    numbers = [lines for lines, _ in lengths]
    return [Metric(f"function length, p90 of {len(numbers)}", percentile(numbers, 90), 22, worst),
            Metric("function length, longest", max(numbers, default=0), 60, worst)]


def comment_metric(files):
    folders = {}  # folder -> [lines with comments, lines with code]
    for path, text in files.items():
        if is_cxx(path) and is_house(path):
            counts = folders.setdefault(Path(path).parent.as_posix(), [0, 0])
            counts[0] += sum(1 for line in comments_of(text).splitlines() if line.strip())
            without = re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)
            counts[1] += sum(1 for line in without.splitlines() if line.strip())
    comments, code = (sum(counts[i] for counts in folders.values()) for i in (0, 1))
    fewest = sorted((counts[0] / max(counts[1], 1), folder) for folder, counts in folders.items())
    return Metric("comment lines to code lines", comments / max(code, 1), 0.22,
                  [f"{ratio:6.3f} {folder}, {folders[folder][1]} lines" for ratio, folder in fewest],
                  at_least=True)


def size_metrics(files):
    suffixes = CXX_SUFFIXES | {".py", ".sh"}
    long = [(text.count("\n"), path) for path, text in files.items()
            if Path(path).suffix in suffixes and text.count("\n") > 450]
    full = [(count, folder) for folder, count in folder_counts(files).items() if count > 40]
    return [Metric("files over 450 lines", len(long), 0, ranked(long)),
            Metric("folders over 40 files", len(full), 0, ranked(full))]


def measure(files):
    """All metrics of a tree; `files` maps a path to its text."""
    ops = op_counts(files)
    median = statistics.median_high(ops.values()) if ops else 0
    return [*layer_metrics(files), *function_metrics(files), *size_metrics(files),
            comment_metric(files),
            Metric("files per op, median", median, 10, ranked((n, op) for op, n in ops.items()))]


def public_functions(text):
    """(class, number of its public functions that the text declares) for each class or struct."""
    found, scopes = [], []  # scopes: for each open brace, [class, is public, count] or None
    start = 0
    code = code_of(text)
    for match in re.finditer(r"[{};]|\b(public|private|protected)\s*:(?!:)", code):
        char, inside = match.group(0), scopes[-1] if scopes else None
        head = SPACE.sub(" ", without_template(code[start:match.start()].strip()))
        if match.group(1):
            if inside:
                inside[1] = match.group(1) == "public"
        elif char == "}":
            scope = scopes.pop() if scopes else None
            if scope:
                found.append((scope[0], scope[2]))
        else:
            named = re.match(r"(class|struct) (\w+)(?! *[;(])", head)
            is_function = inside and inside[1] and "(" in head and not named
            if is_function and not head.startswith(("using ", "static_assert", "friend ")):
                inside[2] += 1
            if char == "{":
                scopes.append([named.group(2), named.group(1) == "struct", 0] if named else None)
        start = match.end()
    return found


def looks(files, root):
    """Lines with numbers that have no limit."""
    source = {path: text for path, text in files.items() if path.startswith("src/") and is_cxx(path)}
    classes = [(count, f"{name} ({path})") for path, text in source.items() if path.endswith(".h")
               for name, count in public_functions(text)]
    phases = sum(bool(re.search(r"\bPhase\b", line)) for path, text in source.items()
                 if not path.startswith(("src/server/", "src/engine/schedule/"))
                 for line in code_of(text).splitlines())
    consumers = {}
    for path, text in files.items():
        for header in set(re.findall(r'#include "([^"]+)"', text)):
            if Path(path).with_suffix("") != Path("src", header).with_suffix(""):
                consumers.setdefault("src/" + header, set()).add(path)
    single = sum(len(consumers.get(path, ())) == 1 for path in source if path.endswith(".h"))
    most = ranked(classes)[0].split(None, 1) if classes else ("0", "")
    lines = [("files of src", len(source), ""),
             ("lines of the median file", percentile([t.count("\n") for t in source.values()], 50), ""),
             ("public functions, most of a class", most[0], most[1]),
             ("lines that name Phase", phases, ""),
             ("headers with one consumer", single, "")]
    log = subprocess.run(["git", "-C", root, "log", "-5", "--no-merges", "--name-only", "--format=%x00%s",
                          "--full-diff", "--", "CHANGELOG.md"], capture_output=True, text=True)
    if log.returncode == 0 and log.stdout:
        counts = [len(set(filter(is_house, commit.splitlines()[1:]))) for commit in log.stdout.split("\0")[1:]]
        lines.append(("product files of the last commits", " ".join(map(str, counts)), ""))
    return [f"    {name:34} {value:>8}   {note}".rstrip() for name, value, note in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--check", action="store_true", help="exit with 1 when one does not hold")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="name the N worst of each")
    args = parser.parse_args()
    metrics = measure(read_tree(args.root))
    for metric in metrics:
        print(metric)
        for line in metric.worst[:args.worst]:
            print(f"      {line}")
    print("\n".join(looks(read_tree(args.root), args.root)))
    return 1 if args.check and not all(metric.holds() for metric in metrics) else 0


if __name__ == "__main__":
    sys.exit(main())
