"""test_parts.py with a ctest and a cmake that only write down what they were asked for."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools/test_parts.py"
NAMES = ["alpha_test", "beta_test", "gamma_test", "delta_test", "epsilon_test"]
# Answers --show-only with the file "tests"; else fails where a test named in "broken" is asked for.
CTEST = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
  *show-only*) cat "$here/tests" ;;
  *) echo "ctest $*" >>"$here/calls"; ! grep -q -f "$here/broken" "$here/calls" ;;
esac
"""
CMAKE = """#!/bin/sh
echo "cmake $*" >>"$(dirname "$0")/calls"
"""


class TestParts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.build = self.folder / "build"
        self.build.mkdir()
        tests = [{"name": name} for name in [*NAMES, "script"]]
        (self.folder / "tests").write_text(json.dumps({"tests": tests}), encoding="utf-8")
        lines = [f'add_test([=[{name}]=] "{self.build.resolve()}/tests/{name}" "argument")' for name in NAMES]
        lines.append('add_test([=[script]=] "/usr/bin/python3" "/somewhere/script.py")')
        (self.build / "CTestTestfile.cmake").write_text("\n".join(lines), encoding="utf-8")
        (self.folder / "broken").write_text("no test has this name\n", encoding="utf-8")
        for name, text in (("ctest", CTEST), ("cmake", CMAKE)):
            (self.folder / name).write_text(text, encoding="utf-8")
            (self.folder / name).chmod(0o755)

    def run_script(self, *options):
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run([sys.executable, str(SCRIPT), str(self.build), *options], capture_output=True, text=True,
                              check=False, env={**os.environ, "PATH": path})

    def ran(self):
        """The tests that each call of ctest was asked for."""
        calls = (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        return [re.search(r"\^\((.*)\)\$", call).group(1).replace("\\", "").split("|")
                for call in calls if call.startswith("ctest")]

    def left_out(self):
        return (self.build / "left_out.txt").read_text(encoding="utf-8").split()

    def test_with_time_all_tests_run_once(self):
        done = self.run_script("--parts", "2", "--seconds", "1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.ran(), [["alpha_test", "gamma_test", "epsilon_test"],
                                      ["beta_test", "delta_test", "script"]])
        self.assertEqual(self.left_out(), [])

    def test_without_time_one_part_runs_and_the_others_are_named(self):
        done = self.run_script("--parts", "2", "--first", "7")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.ran(), [["beta_test", "delta_test", "script"]])
        self.assertEqual(self.left_out(), ["alpha_test", "gamma_test", "epsilon_test"])
        self.assertIn("3 tests left out", done.stdout)

    def test_what_always_runs_is_no_part(self):
        self.run_script("--parts", "2", "--always", "^gamma", "--at-least", "0", "--expect", "9", "--seconds", "8")
        self.assertEqual(self.ran(), [["gamma_test"]])
        self.assertEqual(self.left_out(), ["alpha_test", "delta_test", "script", "beta_test", "epsilon_test"])

    def test_the_first_part_begins_if_it_is_expected_to_end_in_time(self):
        self.run_script("--parts", "2", "--at-least", "0", "--expect", "9", "--seconds", "1000")
        self.assertEqual(len(self.ran()), 2)
        self.assertEqual(self.left_out(), [])

    def test_as_many_parts_run_as_were_asked_for(self):
        self.run_script("--parts", "3", "--at-least", "2")
        self.assertEqual(self.ran(), [["alpha_test", "delta_test"], ["beta_test", "epsilon_test"]])
        self.assertEqual(self.left_out(), ["gamma_test", "script"])

    def test_a_failure_fails_and_the_other_parts_still_run(self):
        (self.folder / "broken").write_text("alpha_test\n", encoding="utf-8")
        done = self.run_script("--parts", "2", "--seconds", "1000")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(self.ran()), 2)

    def test_only_the_programs_of_a_part_are_built(self):
        self.run_script("--parts", "3")
        calls = (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        self.assertEqual(calls[0],
                         f"cmake --build {self.build} --target tests/alpha_test tests/delta_test -- -k 0")

    def test_ctest_chooses_by_labels(self):
        (self.folder / "ctest").write_text('#!/bin/sh\necho "$*" >&2; exit 1\n', encoding="utf-8")
        done = self.run_script("--label", "release", "--leave-out", "gpu")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("-L', 'release', '-LE', 'gpu'", done.stderr)


if __name__ == "__main__":
    unittest.main()
