"""Runs the check_* functions of a client's program one after the other, for run.sh.

run.sh sets OPENAI_BASE_URL, OPENAI_API_KEY and the same of ANTHROPIC, which clients read by themselves, and
SLUICE and MODEL.
Standard library only: each client has a virtual environment of its own.
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import traceback

import scripted_model

MODEL_NAME = pathlib.Path(os.environ["MODEL"]).name
SECRET = "7391846"
# The bundled model answers this with a sentence that has the number.
QUESTION = (f"The secret number of the purple castle is {SECRET}. "
            "What is the secret number of the purple castle?")
MESSAGES = [{"role": "user", "content": QUESTION}]
ANSWER = f"The secret number of the purple castle is {SECRET}."
# For scripted_server: a function that clients offer, a call of it, what it returns, and what is said before and after.
FUNCTION = {"name": "number_of", "description": "the number of a castle", "parameters": {
    "type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"],
    "additionalProperties": False}}
TOOL = {"type": "function", "function": FUNCTION | {"strict": True}}
CALL = {"name": "number_of", "arguments": {"colour": "purple"}}
RESULT = SECRET
BEFORE_CALL, AFTER_CALL = "I ask.", "The number of the purple castle was found."
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


def in_parts(stream, what):
    """(parts, message) of `stream()`, which must come in parts. The server joins what a client has not read yet,
    so on a busy machine one of several streams may come whole, but not ten."""
    for _ in range(10):
        parts, message = stream()
        if len(parts) > 1:
            return parts, message
    raise AssertionError(f"{what} never come in parts: {parts}")


def score(text):
    """What `sluice score --json` says about a text or token ids: token_ids, logprobs, top_token_ids."""
    what = ["--", text] if isinstance(text, str) else ["--tokens", ",".join(map(str, text))]
    done = subprocess.run([os.environ["SLUICE"], "score", "--model", os.environ["MODEL"], "--json",
                           "--kv-cache-bytes", "512M", *what],
                          capture_output=True, text=True, encoding="utf-8", check=True)
    return json.loads(done.stdout)


class Server:
    """`sluice serve` with another model or other options than run.sh's server, with the same key.

    On a free port, or `port`; with the option --uds it has none.
    """

    def __init__(self, model, *options, port=0, kv_bytes="512M"):
        self.log = tempfile.NamedTemporaryFile(mode="w+", encoding="utf-8", prefix="sluice-")
        words = [os.environ["SLUICE"], "serve", "--model", str(model), "--port", str(port),
                 "--kv-cache-bytes", kv_bytes, *options]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while "\nserving " not in self.logged():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                raise AssertionError(f"the server does not serve: {self.logged()}")
            time.sleep(0.05)
        listens = re.search(r"listening on http://[\d.]+:(\d+)", self.logged())  # else on a unix domain socket
        self.port = int(listens.group(1)) if listens else None
        self.url = f"http://127.0.0.1:{self.port}"

    def logged(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def check_statuses(self, path, want, seconds=60):
        """Of the answers that the log has for this path; a line comes after the last byte of its answer."""
        ends = time.monotonic() + seconds
        while len(lines := re.findall(rf" {path} (\d+) ", self.logged())) < len(want) and time.monotonic() < ends:
            time.sleep(0.1)
        same([int(status) for status in lines], want, f"statuses of {path}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


@contextlib.contextmanager
def scripted_server(call=CALL, answer=AFTER_CALL, before_call=BEFORE_CALL, options=()):
    """A Server whose model calls a tool once, as scripted_model.py says; the model's name is `scripted`."""
    with tempfile.TemporaryDirectory() as directory:
        model = pathlib.Path(directory) / "scripted"
        model.mkdir()
        scripted_model.make(model, call, answer, before_call)
        with Server(model, *options) as server:
            yield server


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
