"""llm, the command line: a model of the server in extra-openai-models.yaml, with and without streams."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from checks import ANSWER, MODEL_NAME, QUESTION, holds, run_checks, same

PROGRAM = pathlib.Path(sys.executable).with_name("llm")
# Read when the program starts: its models, and nothing of this user's own.
FOLDER = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = FOLDER.name
pathlib.Path(FOLDER.name, "extra-openai-models.yaml").write_text(
    f"""
- model_id: served
  model_name: {MODEL_NAME}
  api_base: "{os.environ['OPENAI_BASE_URL']}"
  api_key_name: server
- model_id: served-text
  model_name: {MODEL_NAME}
  api_base: "{os.environ['OPENAI_BASE_URL']}"
  api_key_name: server
  completion: true
- model_id: missing
  model_name: none-of-this-name
  api_base: "{os.environ['OPENAI_BASE_URL']}"
  api_key_name: server
""", encoding="utf-8")
pathlib.Path(FOLDER.name, "keys.json").write_text(
    json.dumps({"server": os.environ["OPENAI_API_KEY"]}), encoding="utf-8")


def run(*words, status=0):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, encoding="utf-8", check=False)
    same(done.returncode, status, f"status of {words}; it says {done.stderr!r}")
    return done.stdout.strip() if status == 0 else done.stderr


def check_chat():
    same(run("-m", "served", "-o", "temperature", "0", QUESTION), ANSWER)
    same(run("-m", "served", "-o", "temperature", "0", "--no-stream", QUESTION), ANSWER)


def check_conversation():
    first = run("-m", "served", "-o", "temperature", "0", QUESTION)
    same(first, ANSWER)
    holds(run("-c", "-o", "temperature", "0", "-o", "max_tokens", "8", "What is it?"), "an answer")


def check_completion():
    text = run("-m", "served-text", "-o", "temperature", "0", "-o", "max_tokens", "8", "It was a dark and")
    holds(text, "a text")


def check_errors():
    holds("none-of-this-name" in run("-m", "missing", QUESTION, status=1), "the name of the model")


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
