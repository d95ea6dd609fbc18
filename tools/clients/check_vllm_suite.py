"""vLLM's tests of its server's entry points, from its source distribution, ask `sluice serve` with a real model."""

import os
import pathlib
import subprocess
import sys

TOOLS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOOLS / "clients/suites"), str(TOOLS)]

import runner
import sdist

PACKAGE = ("vllm", "0.33.0", "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112")
ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["tests/__init__.py", "tests/entrypoints/"]
OPENAI = "tests/entrypoints/openai"
# For CI: completions and tokens, 30 tests in 20 s on 2 quiet cores. All 220 take 4 minutes.
SHORT = [f"{OPENAI}/completion/test_completion.py", "tests/entrypoints/serve/tokenize/test_tokenization.py"]
FILES = [f"{OPENAI}/chat_completion", f"{OPENAI}/completion", f"{OPENAI}/models", f"{OPENAI}/responses",
         f"{OPENAI}/test_chunked_prompt.py", f"{OPENAI}/test_return_token_ids.py",
         f"{OPENAI}/test_return_tokens_as_ids.py", "tests/entrypoints/anthropic/test_messages.py",
         "tests/entrypoints/serve/tokenize", "tests/entrypoints/serve/instrumentator"]
OPTIONS = ["-o", "asyncio_default_fixture_loop_scope=function", "--rootdir=."]


def main():
    model = pathlib.Path(os.environ.get("SUITE_MODEL", ROOT / "models/smollm2-135m-instruct-hf")).resolve()
    os.environ["SUITE_MODEL"] = str(model)
    done = subprocess.run([sys.executable, ROOT / "tools/real_model/get_smollm2.py", "--hf", "--out", model],
                          check=False)
    try:
        folder = sdist.folder_of(*PACKAGE, FOLDERS)
    except sdist.Unreachable as error:
        print(f"skipped: {error}")
        return runner.SKIPPED
    if done.returncode != 0:
        print("skipped: the model could not be made")
        return done.returncode
    return runner.run_suite("vllm", folder, FILES, SHORT, OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
