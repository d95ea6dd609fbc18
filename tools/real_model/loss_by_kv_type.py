#!/usr/bin/env python3
"""Measures next-token loss with keys and values in 8 bits beside bfloat16: the tables of docs/measured/kv_types.md.

Each text is scored once with each type (`sluice score`). A row has the mean loss in nats with bfloat16 and, for each
other type, the mean difference, token by token, with its standard error, and the largest single one; last, how many
tokens were the likeliest one, for each type.

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


def compared(plain, other):
    """Two cells: how much larger the losses of `other` are, and the largest difference."""
    above = [b - a for a, b in zip(plain, other, strict=True)]
    error = statistics.stdev(above) / len(above) ** 0.5
    return f"{statistics.mean(above):+.4f} ± {error:.4f} | {max(map(abs, above)):.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--model", required=True)
    parser.add_argument("--types", nargs="+", default=["fp8", "int8"])
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    others = "".join(f" | {kind} above | largest" for kind in arguments.types)
    print(f"| text | tokens | bfloat16{others} | likeliest token hit |")
    print("|---" * (4 + 2 * len(arguments.types)) + "|")
    for path in arguments.texts:
        measured = [losses(arguments.sluice, arguments.model, path, kind, arguments.max_model_len)
                    for kind in ["bfloat16", *arguments.types]]
        plain = measured[0][0]
        cells = " | ".join(compared(plain, other) for other, _ in measured[1:])
        hits = ", ".join(str(count) for _, count in measured)
        print(f"| {path.name} | {len(plain)} | {statistics.mean(plain):.4f} | {cells} | {hits} |", flush=True)


if __name__ == "__main__":
    main()
