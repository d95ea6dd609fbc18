"""check_docs.py on documents with blocks that pass, fail or are only shown, and with broken links."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools/check_docs.py"


class CheckDocs(unittest.TestCase):
    def check(self, text, *options):
        """Exit status and output for a document."""
        with tempfile.NamedTemporaryFile("w", suffix=".md") as document:
            document.write(text)
            document.flush()
            done = subprocess.run([sys.executable, str(SCRIPT), *options, document.name],
                                  capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_blocks_to_run_are_run(self):
        status, output = self.check("# T\n\n```sh run\ntrue\n```\n\n```sh run exit=3\nexit 3\n```\n")
        self.assertEqual(status, 0, output)
        self.assertIn("check_docs: 2 passed, 0 failed", output)

    def test_a_failure_anywhere_in_a_block_counts(self):
        for commands in ("false\ntrue", "false | true", "exit 3"):
            status, output = self.check(f"```sh run\n{commands}\n```\n")
            self.assertEqual(status, 1, output)
            self.assertIn(":1 (", output)

    def test_links_lead_to_files_and_headings(self):
        name = os.path.relpath(SCRIPT, tempfile.gettempdir())
        good = (f"# A `b` and [c](https://x.y/z)\n\n[here](#a-b-and-c) [file]({name}) "
                f"[line]({name}#L1) <https://x.y>\n")
        status, output = self.check(good)
        self.assertEqual(status, 0, output)
        for target in ("#b", "no_such_file.md", name + "x"):
            status, output = self.check(good + f"\n[away]({target})\n")
            self.assertEqual(status, 1, output)
            self.assertIn(f":5: nothing is at {target}", output)

    def test_other_blocks_are_left_alone(self):
        status, output = self.check("```sh\nfalse\n```\n\n```cpp run\nfalse\n```\n")
        self.assertEqual(status, 0, output)
        self.assertIn("0 passed, 0 failed", output)

    def test_commands_must_be_those_of_the_programs(self):
        with tempfile.TemporaryDirectory() as build:
            for name, commands in (("sluice", "run|store list"), ("sluice-eval", "needle")):
                program = Path(build, name)
                cases = "|".join(f'"{command} --help"' for command in commands.split("|"))
                program.write_text(f'#!/bin/sh\ncase "$*" in {cases}) ;; *) exit 2 ;; esac\n')
                program.chmod(0o755)
            good = ("`sluice run -m DIR`, the program sluice reads\n\n"
                    "```sh\nsluice-eval needle\nsluice store list D\n```\n")
            status, output = self.check(good, "--build", build)
            self.assertEqual(status, 0, output)
            for command in ("sluice needle", "sluice store lost", "sluice-eval run", "sluice-other x"):
                status, output = self.check(good + f"\n`{command} --model D`\n", "--build", build)
                self.assertEqual(status, 1, output)
                self.assertIn(f":8: no command {command}", output)


if __name__ == "__main__":
    unittest.main()
