"""schemathesis: requests made from /openapi.json, at and past every limit it gives, never break the server.

All of its checks: no answer is an error of the server, or of another status, type or form than is described; no request
that the description allows is refused, and none that it forbids is taken.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from checks import run_checks, same

PROGRAM = pathlib.Path(sys.executable).with_name("schemathesis")
FOLDER = tempfile.TemporaryDirectory()  # it keeps its cases in its working directory
ROOT = os.environ["ANTHROPIC_BASE_URL"]


def run_phases(phases, seconds):
    # The server that run.sh starts for this cuts long answers short.
    done = subprocess.run(
        [PROGRAM, "run", f"{ROOT}/openapi.json", "--header", f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}",
         "--checks", "all", "--phases", phases, "--max-time", str(seconds), "--generation-deterministic",
         "--suppress-health-check", "all", "--request-timeout", "120", "--no-color", "--workers", "2"],
        check=False, cwd=FOLDER.name)
    same(done.returncode, 0, f"status of schemathesis for {phases}")


def check_generated_requests():
    run_phases("coverage,fuzzing", 90)


def check_sequences_of_requests():
    run_phases("stateful", 30)


def check_server_lives():
    with urllib.request.urlopen(f"{ROOT}/health", timeout=10) as answer:
        same(answer.status, 200)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
