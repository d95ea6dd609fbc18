#!/usr/bin/env python3
"""Builds and runs the tests of a build in parts, as many parts as the time allows.

A part is every n-th test, in the order of ctest. What ALWAYS matches runs first, then AT-LEAST parts,
whatever they take. A further part begins only if it is expected to end in time: the first one after
EXPECT seconds, any other as soon as the one before it. What was left out is printed, and written to
BUILD/left_out.txt, one test a line; the file is empty if all tests ran.

    python3 tools/test_parts.py BUILD [--parts N] [--first K] [--at-least N] [--seconds S] [--expect S]
                                [--always REGEX] [--label REGEX] [--leave-out REGEX]
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


def all_tests(build, label, leave_out):
    """Each test's name with the programs of `build` that its command names, in the order of ctest."""
    shown = subprocess.run(["ctest", "--test-dir", build, "-L", label, "-LE", leave_out, "--show-only=json-v1"],
                           check=True, capture_output=True, text=True).stdout
    root = Path(build).resolve()
    of_test = commands(build)
    tests = []
    for test in json.loads(shown)["tests"]:
        words = [Path(word) for word in of_test[test["name"]]]
        programs = [str(word.relative_to(root)) for word in words if word.is_relative_to(root)]
        tests.append((test["name"], programs))
    return tests


def run_part(build, tests):
    """Builds the programs of `tests` and runs them; false if one does not compile, and then none runs, or fails."""
    programs = sorted({program for _, programs in tests for program in programs})
    if programs and not run(["cmake", "--build", build, "--target", *programs, "--", "-k", "0"]):
        return False
    names = "|".join(re.escape(name) for name, _ in tests)
    return run(["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "-j", "2",
                "-R", f"^({names})$"])


def parts_of(tests, args):
    """The tests that ALWAYS matches, and the parts in the order in which they run."""
    always = [test for test in tests if args.always and re.search(args.always, test[0])]
    others = [test for test in tests if test not in always]
    parts = [others[(args.first + k) % args.parts::args.parts] for k in range(args.parts)]
    return always, [part for part in parts if part]


def run_parts(args, tests):
    """Runs parts until the time is over; returns whether all passed, and the names of the tests that did not run."""
    start = time.monotonic()
    always, parts = parts_of(tests, args)
    passed = run_part(args.build, always) if always else True
    expected = args.expect
    for count, part in enumerate(parts):
        begin = time.monotonic()
        if count >= args.at_least and begin - start + expected > args.seconds:
            return passed, [name for left in parts[count:] for name, _ in left]
        print(f"part {count + 1} of {len(parts)}: {len(part)} tests", flush=True)
        passed = run_part(args.build, part) and passed
        expected = time.monotonic() - begin
    return passed, []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="folder of a configured build")
    parser.add_argument("--parts", type=int, default=4, help="how many parts there are")
    parser.add_argument("--first", type=int, default=0, help="the part that runs first, modulo the parts")
    parser.add_argument("--at-least", type=int, default=1, help="this many parts run in any case")
    parser.add_argument("--seconds", type=float, default=0, help="a further part has to end in this time")
    parser.add_argument("--expect", type=float, default=0, help="seconds that the first part takes, if AT-LEAST is 0")
    parser.add_argument("--always", default="", help="tests that run before the parts")
    parser.add_argument("--label", default="", help="labels of the tests that run")
    parser.add_argument("--leave-out", default="gpu|slow", help="labels of the tests that do not")
    args = parser.parse_args()
    passed, left = run_parts(args, all_tests(args.build, args.label, args.leave_out))
    (Path(args.build) / "left_out.txt").write_text("".join(f"{name}\n" for name in left))
    if left:
        print(f"{len(left)} tests left out, since there was no time for them: {' '.join(left)}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
