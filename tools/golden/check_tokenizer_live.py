#!/usr/bin/env python3
"""Compares Sluice's tokenizer with the `tokenizers` package on fresh random strings.

    python3 tools/golden/check_tokenizer_live.py ENCODE_LINES DIR... [--seed N] [--count N]

ENCODE_LINES is the program tests/tokenizer/encode_lines.cc; each DIR holds a tokenizer.json (a real
model's, or one of tests/golden/tokenizer/). Without a seed the strings differ from run to run; a
failure prints the seed. Prints "skipped: ..." and succeeds where the package cannot be imported.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

import tokenizer_strings as strings


def compare(program, directory, texts, parse_special):
    from tokenizers import Tokenizer
    reference = Tokenizer.from_file(str(pathlib.Path(directory) / "tokenizer.json"))
    reference.encode_special_tokens = not parse_special
    command = [program, directory] + (["--special"] if parse_special else [])
    lines = subprocess.run(command, input="".join(json.dumps(t) + "\n" for t in texts),
                           capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    if len(lines) != len(texts):
        return [f"{len(lines)} answers to {len(texts)} texts"]
    failures = []
    for text, line in zip(texts, lines):
        numbers, decoded = line.split("\t", 1)
        ids = [int(n) for n in numbers.split()]
        want = reference.encode(text).ids
        want_text = reference.decode(want, skip_special_tokens=False)
        if ids != want or json.loads(decoded) != want_text:
            failures.append(f"{directory}: {json.dumps(text)}\n  ours {ids}\n  want {want}")
    return failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("directories", nargs="+")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--count", type=int, default=3000)
    options = parser.parse_args()
    try:
        import tokenizers
    except ImportError:
        print("skipped: the Python package tokenizers cannot be imported")
        return 0
    texts = strings.fixed_strings() + strings.seeded(options.seed, options.count)
    failures = []
    for directory in options.directories:
        for parse_special in (True, False):
            failures += compare(options.program, directory, texts, parse_special)
    print("\n".join(failures[:10]))
    print(f"tokenizers {tokenizers.__version__}, seed {options.seed}: {len(failures)} of "
          f"{2 * len(texts) * len(options.directories)} comparisons differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
