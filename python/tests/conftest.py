"""Fixtures: the bundled model in Python, and the program of the same build to compare with."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import sluice

MODEL = str(pathlib.Path(__file__).resolve().parents[2] / "models" / "needle")
# The cache is small, since several engines live at the same time.
OPTIONS = {"device": "cpu", "kv_cache_bytes": "192M", "num_threads": 2}
SECRET = "7391846"
QUESTION = (f"The secret number of the purple castle is {SECRET}. "
            "What is the secret number of the purple castle?")
PROMPTS = ["It was a dark and", "The king of France was", QUESTION]


@pytest.fixture(scope="session")
def llm():
    return sluice.LLM(MODEL, **OPTIONS)


def program():
    """The `sluice` of this environment, or that of the variable SLUICE."""
    return os.environ.get("SLUICE") or str(pathlib.Path(sys.executable).parent / "sluice")


def run_program(command, *arguments):
    """The JSON lines that a command of the program prints for the bundled model."""
    options = ["--model", MODEL, "--json", "--device", "cpu", "--kv-cache-bytes", "192M"]
    done = subprocess.run([program(), command, *options, *arguments], capture_output=True, text=True, encoding="utf-8",
                          check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
