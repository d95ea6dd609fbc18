"""Runs the check_* functions of a client's program one after the other, for run.sh.

run.sh sets OPENAI_BASE_URL, OPENAI_API_KEY and the same of ANTHROPIC, which clients read by themselves, and
SLUICE and MODEL.
Standard library only: each client has a virtual environment of its own.
"""

import json
import os
import pathlib
import subprocess
import time
import traceback

MODEL_NAME = pathlib.Path(os.environ["MODEL"]).name
SECRET = "7391846"
# The bundled model answers this with a sentence that has the number.
QUESTION = (f"The secret number of the purple castle is {SECRET}. "
            "What is the secret number of the purple castle?")
MESSAGES = [{"role": "user", "content": QUESTION}]
ANSWER = f"The secret number of the purple castle is {SECRET}."
# Of two programs that compute the same numbers in tiles of other sizes.
TOLERANCE_NATS = 1e-4


def same(ours, want, what="value"):
    if ours != want:
        raise AssertionError(f"{what} is {ours!r}, want {want!r}")


def close(ours, want, what="value", tolerance=TOLERANCE_NATS):
    if abs(ours - want) > tolerance:
        raise AssertionError(f"{what} is {ours}, want {want} to {tolerance}")


def holds(condition, what):
    if not condition:
        raise AssertionError(what)


def raised(error_class, call):
    """The error of this class that the call must raise; others pass through."""
    try:
        value = call()
    except error_class as error:
        return error
    raise AssertionError(f"gave {value!r}, want {error_class.__name__}")


def score(text):
    """What `sluice score --json` says about a text or token ids: token_ids, logprobs, top_token_ids."""
    what = ["--", text] if isinstance(text, str) else ["--tokens", ",".join(map(str, text))]
    done = subprocess.run([os.environ["SLUICE"], "score", "--model", os.environ["MODEL"], "--json",
                           "--kv-cache-bytes", "512M", *what],
                          capture_output=True, text=True, encoding="utf-8", check=True)
    return json.loads(done.stdout)


def run_checks(namespace):
    """The exit status of the program whose globals these are."""
    checks = [value for name, value in namespace.items() if name.startswith("check_")]
    num_failed = 0
    for check in checks:
        start = time.monotonic()
        try:
            check()
        except Exception:  # every check runs, whatever one of them raises
            num_failed += 1
            traceback.print_exc()
            print(f"FAILED {check.__name__}", flush=True)
        else:
            print(f"passed {check.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
    return 1 if num_failed or not checks else 0
