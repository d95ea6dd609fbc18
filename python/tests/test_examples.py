"""The example of sparse policies, as a user runs it."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_policies_keep_the_answer() -> None:
    done = subprocess.run([sys.executable, ROOT / "examples/policies.py", ROOT / "models/needle"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("7391846") == 3, done.stdout
