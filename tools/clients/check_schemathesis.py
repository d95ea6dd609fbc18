"""schemathesis: requests made from /openapi.json, at and past every limit it gives, never break the server.

All of its checks: no answer is an error of the server, or of another status, type or form than is described; no request
at a limit of the description that it allows is refused, and none that it forbids is taken. A random request may be
refused for what no description can say: how many tokens a text has, that a conversation has no text at all.
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


HOOKS = pathlib.Path(__file__).with_name("schemathesis_hooks.py")


def run_phase(phase, seconds, exclude, workers="2", environment=None):
    # The server that run.sh starts for this cuts long answers short.
    done = subprocess.run(
        [PROGRAM, "run", f"{ROOT}/openapi.json", "--header", f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}",
         "--checks", "all", "--exclude-checks", exclude, "--phases", phase, "--max-time", str(seconds),
         "--generation-deterministic", "--suppress-health-check", "all", "--request-timeout", "120", "--no-color",
         "--workers", workers],
        check=False, cwd=FOLDER.name, env=os.environ | {"SCHEMATHESIS_HOOKS": str(HOOKS)} | (environment or {}))
    same(done.returncode, 0, f"status of schemathesis for {phase}")


def check_requests_at_limits():
    # One thread: with two CPython 3.11 fails now and then, where hypothesis parses its own source.
    run_phase("coverage", 300, "positive_data_acceptance", workers="1")


def run_random(phase, seconds):
    run_phase(phase, seconds, "positive_data_acceptance,described_data_is_accepted",
              environment={"WITHOUT_RULES": "1"})


def check_random_requests():
    run_random("fuzzing", 75)


def check_sequences_of_requests():
    run_random("stateful", 30)


def check_server_lives():
    with urllib.request.urlopen(f"{ROOT}/health", timeout=10) as answer:
        same(answer.status, 200)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
