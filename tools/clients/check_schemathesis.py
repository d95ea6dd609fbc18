"""schemathesis: requests made from /openapi.json, at and past every limit it gives, never break the server.

No answer may be an error of the server, or of another status, type or form than is described.
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
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_schema_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth"]


def check_generated_requests():
    # The server that run.sh starts for this cuts long answers short.
    done = subprocess.run(
        [PROGRAM, "run", f"{ROOT}/openapi.json", "--header", f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}",
         "--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--max-time", "90",
         "--generation-deterministic", "--suppress-health-check", "all", "--request-timeout", "120",
         "--no-color", "--workers", "2"],
        check=False, cwd=FOLDER.name)
    same(done.returncode, 0, "status of schemathesis")


def check_server_lives():
    with urllib.request.urlopen(f"{ROOT}/health", timeout=10) as answer:
        same(answer.status, 200)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
