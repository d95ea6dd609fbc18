#!/usr/bin/env python3
"""Measures next-token loss with keys and values in FP8 beside bfloat16: the table of docs/measured/kv_types.md.

Each text is scored once with each type (`sluice score`). A row has the mean loss in nats with both, the mean
difference, token by token, with its standard error, and the largest single difference.

Usage: python tools/real_model/loss_by_kv_type.py --sluice PROGRAM --model DIR TEXT...
"""

import argparse
import json
import pathlib
import statistics

import sluice_program


def losses(program, model, path, kv_type, length):
    """Nats of each token but the first, and how many of them were the likeliest one."""
    words = [program, "score", "-m", model, "--json", "--kv-cache-dtype", kv_type]
    words += ["--kv-offload", "off", "--max-model-len", str(length), "-f", path]
    answer = json.loads(sluice_program.run(words))
    return [-value for value in answer["logprobs"][1:]], answer["num_greedy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--model", required=True)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    print("| text | tokens | bfloat16 | FP8 | FP8 above bfloat16 | largest | likeliest token hit |")
    print("|---|---|---|---|---|---|---|")
    for path in arguments.texts:
        plain, plain_hits = losses(arguments.sluice, arguments.model, path, "bfloat16", arguments.max_model_len)
        fp8, fp8_hits = losses(arguments.sluice, arguments.model, path, "fp8", arguments.max_model_len)
        above = [b - a for a, b in zip(plain, fp8, strict=True)]
        error = statistics.stdev(above) / len(above) ** 0.5
        print(f"| {path.name} | {len(above)} | {statistics.mean(plain):.4f} | {statistics.mean(fp8):.4f} | "
              f"{statistics.mean(above):+.4f} ± {error:.4f} | {max(map(abs, above)):.2f} | "
              f"{plain_hits} and {fp8_hits} |", flush=True)


if __name__ == "__main__":
    main()
