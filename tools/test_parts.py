#!/usr/bin/env python3
"""Builds and runs the tests of a build in parts, as many parts as the time allows.

A part is every n-th program of the build with its tests, in the order of ctest, and what ALWAYS
matches. The first parts run whatever they take; a further part begins only if one that takes as long
as the last one would end in time. What was left out is printed, and written to BUILD/left_out.txt,
one test a line; the file is empty if all tests ran.

    python3 tools/test_parts.py BUILD [--parts N] [--first K] [--at-least N] [--seconds S]
                                [--always REGEX] [--leave-out REGEX] [--libraries TARGET...]
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path


def run(command):
    return subprocess.run(command, check=False).returncode == 0


def commands(build):
    """Each test's command, as CMake wrote it; what ctest shows lacks those of programs that are not built yet."""
    lines = (line for path in Path(build).rglob("CTestTestfile.cmake")
             for line in path.read_text(encoding="utf-8").splitlines())
    found = (re.match(r"add_test\((?:\[=\[)?([^\s\]]+)(?:\]=\])? (.*)\)$", line) for line in lines)
    return {match.group(1): re.findall(r'"([^"]*)"', match.group(2)) for match in found if match}


def all_tests(build, leave_out):
    """Each test's name with the programs of `build` that its command names, in the order of ctest."""
    shown = subprocess.run(["ctest", "--test-dir", build, "-LE", leave_out, "--show-only=json-v1"],
                           check=True, capture_output=True, text=True).stdout
    root = Path(build).resolve()
    of_test = commands(build)
    tests = []
    for test in json.loads(shown)["tests"]:
        words = [Path(word) for word in of_test[test["name"]]]
        programs = [str(word.relative_to(root)) for word in words if word.is_relative_to(root)]
        tests.append((test["name"], programs))
    return tests


def part_of(tests, part, parts, always):
    """The tests of one part of `parts`: every test whose number has the remainder `part`, and what `always` names."""
    return [test for number, test in enumerate(tests)
            if number % parts == part or (always and re.search(always, test[0]))]


def run_part(build, tests):
    """Builds the programs of `tests` and runs them; false if one does not compile or fails."""
    programs = sorted({program for _, programs in tests for program in programs})
    if programs and not run(["cmake", "--build", build, "--target", *programs]):
        return False
    names = "|".join(re.escape(name) for name, _ in tests)
    return run(["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-j", "2",
                "-R", f"^({names})$"])


def run_parts(args, tests):
    """Runs parts until the time is over; returns whether all passed, and the names of the tests that did not run."""
    start = time.monotonic()
    left = {name for name, _ in tests}
    passed = not args.libraries or run(["cmake", "--build", args.build, "--target", *args.libraries])
    for count in range(args.parts):
        part = (args.first + count) % args.parts
        begin = time.monotonic()
        chosen = [test for test in part_of(tests, part, args.parts, args.always) if test[0] in left]
        if not chosen:
            continue
        print(f"part {part + 1} of {args.parts}: {len(chosen)} tests", flush=True)
        passed = run_part(args.build, chosen) and passed
        left -= {name for name, _ in chosen}
        now = time.monotonic()
        if count + 1 >= args.at_least and now - start + (now - begin) > args.seconds:
            break
    return passed, [name for name, _ in tests if name in left]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="folder of a configured build")
    parser.add_argument("--parts", type=int, default=4, help="how many parts there are")
    parser.add_argument("--first", type=int, default=0, help="the part that runs first, modulo the parts")
    parser.add_argument("--at-least", type=int, default=1, help="this many parts run in any case")
    parser.add_argument("--seconds", type=float, default=0, help="a further part has to end in this time")
    parser.add_argument("--always", default="", help="tests that run with the first part")
    parser.add_argument("--leave-out", default="gpu|slow", help="labels that do not run")
    parser.add_argument("--libraries", nargs="*", default=[], help="targets that are built before the first part")
    args = parser.parse_args()
    passed, left = run_parts(args, all_tests(args.build, args.leave_out))
    (Path(args.build) / "left_out.txt").write_text("".join(f"{name}\n" for name in left))
    if left:
        print(f"{len(left)} tests left out, since there was no time for them: {' '.join(left)}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
