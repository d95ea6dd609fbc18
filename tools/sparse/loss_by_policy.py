#!/usr/bin/env python3
"""Measures next-token loss under prefill policies beside `full`: the table of docs/policies_measured.md.

Scores the first --length tokens of a text once for each policy (`sluice score`) and reads it once
more for the tiles (`sluice run --sparse-audit`). Only tokens from --beyond on count; what lies
before is dense by the default threshold of 4,096. A row has the mean loss in nats, its difference to
that of `full`, token by token, with the standard error, the share of tiles that rows from --beyond
on visited, and the softmax mass that the audit saw captured.

Usage: python3 tools/sparse/loss_by_policy.py --sluice build/release/sluice --model DIR --text FILE
Exit status: 0 done, 2 a run failed.
"""

import argparse
import json
import re
import subprocess
import sys

EXIT_FAILED = 2
TILE = 128
POLICIES = [["full"], ["sampled+full"], ["sampled+full", "--sparse-coverage", "0.9"],
            ["sampled+full", "--sparse-coverage", "0.8"], ["xattention+full"],
            ["xattention+full", "--sparse-coverage", "0.8"], ["avgpool+full", "--sparse-topk-tokens", "1024"]]


def sluice(arguments, *words):
    done = subprocess.run([arguments.sluice, *words], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        sys.exit(EXIT_FAILED)
    return done.stdout


def token_ids(arguments):
    out = sluice(arguments, "tokenize", "-m", arguments.model, "-f", arguments.text)
    return ",".join(re.findall(r"\d+", out)[:arguments.length])


def losses(arguments, ids, policy):
    rows = str(arguments.beyond)
    out = sluice(arguments, "score", "-m", arguments.model, "--tokens", ids, "--max-num-seqs", rows,
                 "--max-num-batched-tokens", rows, "--sparse-policy", *policy, "--json")
    return [-value for value in json.loads(out)["logprobs"][arguments.beyond + 1:]]


def selection(arguments, ids, policy):
    """Share of tiles that rows from --beyond on visited, and the captured mass."""
    out = sluice(arguments, "run", "-m", arguments.model, "--tokens", ids, "-n", "1", "--temperature", "0",
                 "--sparse-audit", "--sparse-policy", *policy, "--json")
    json_out = json.loads(out)
    prefill = json_out["observations"]["prefill"]
    visible = lambda tokens: (tokens // TILE) * (tokens // TILE + 1) // 2
    all_tiles = visible(len(ids.split(",")) + TILE - 1)
    before = visible(arguments.beyond) * prefill["tiles_visible"] // all_tiles
    density = (prefill["tiles_set"] - before) / (prefill["tiles_visible"] - before)
    return density, json_out["captured_mass"]["captured"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--length", type=int, default=8191)
    parser.add_argument("--beyond", type=int, default=4096)
    arguments = parser.parse_args()
    ids = token_ids(arguments)
    print("| policy | loss | difference to full | tiles | captured |\n|---|---|---|---|---|")
    full = None
    for policy in POLICIES:
        loss = losses(arguments, ids, policy)
        full = full or loss
        mean = sum(loss) / len(loss)
        name = " ".join(policy).replace("--sparse-", "")
        if policy == ["full"]:
            print(f"| {name} | {mean:.4f} | - | 100 % | - |", flush=True)
            continue
        steps = [a - b for a, b in zip(loss, full)]
        difference = sum(steps) / len(steps)
        error = (sum((step - difference) ** 2 for step in steps) ** 0.5) / len(steps)
        density, captured = selection(arguments, ids, policy)
        print(f"| {name} | {mean:.4f} | +{difference:.4f} ± {error:.4f} | {100 * density:.1f} % | "
              f"{captured:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
