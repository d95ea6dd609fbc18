"""llm, the command line: a model of the server in extra-openai-models.yaml, with and without streams."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from checks import AFTER_CALL, ANSWER, CALL, MODEL_NAME, QUESTION, RESULT, holds, run_checks, same, scripted_server

PROGRAM = pathlib.Path(sys.executable).with_name("llm")
# Read when the program starts: its models, and nothing of this user's own.
FOLDER = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = FOLDER.name
MODELS = pathlib.Path(FOLDER.name, "extra-openai-models.yaml")


def entry(model_id, name, url=os.environ["OPENAI_BASE_URL"], more=""):
    return f"""
- model_id: {model_id}
  model_name: {name}
  api_base: "{url}"
  api_key_name: server
  {more}
"""


MODELS.write_text(entry("served", MODEL_NAME) + entry("served-text", MODEL_NAME, more="completion: true") +
                  entry("missing", "none-of-this-name"), encoding="utf-8")
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


def check_tool_round():
    function = f"def {CALL['name']}(colour: str) -> str:\n    return {RESULT!r} if colour == 'purple' else ''\n"
    with scripted_server() as server:
        models = MODELS.read_text(encoding="utf-8")
        MODELS.write_text(models + entry("scripted", "scripted", server.url + "/v1", "supports_tools: true"),
                          encoding="utf-8")
        for options in [], ["--no-stream"]:
            said = run("-m", "scripted", "--functions", function, "--tools-debug", *options, QUESTION)
            holds(said.endswith(AFTER_CALL), f"the answer after the call, not {said!r}")
        MODELS.write_text(models, encoding="utf-8")


def check_errors():
    holds("none-of-this-name" in run("-m", "missing", QUESTION, status=1), "the name of the model")


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
