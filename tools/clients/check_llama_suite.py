"""llama.cpp's server tests, from the source distribution of llama-cpp-python, ask `sluice serve` with MODEL."""

import pathlib
import sys

TOOLS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOOLS / "clients/suites"), str(TOOLS)]

import runner
import sdist

PACKAGE = ("llama-cpp-python", "0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e")
ROOT = "vendor/llama.cpp/"
FOLDERS = [f"{ROOT}tools/server/tests/", f"{ROOT}models/templates/"]
# For CI: chats, messages and responses, 80 tests in 20 s on 2 quiet cores. All 220 take 40 s.
SHORT = ["unit/test_chat_completion.py", "unit/test_compat_anthropic.py", "unit/test_compat_oai_responses.py"]


def main():
    try:
        folder = sdist.folder_of(*PACKAGE, FOLDERS)
    except sdist.Unreachable as error:
        print(f"skipped: {error}")
        return runner.SKIPPED
    return runner.run_suite("llama", folder / ROOT / "tools/server/tests", ["unit"], SHORT, ["-m", "not slow"])


if __name__ == "__main__":
    sys.exit(main())
