#!/usr/bin/env python3
"""Measures next-token loss and KL under prefill policies beside `full`: the table of docs/measured/policies.md.

Reads the first --length tokens of a text once under each policy (`LLM.trace`) and takes the logits of
the tokens from --beyond on; what lies before is dense by the default threshold of 4,096. A row has
the mean loss in nats, its difference to that of `full`, token by token, the divergence
KL(full || policy) of the next-token distributions in nats, both with the standard error, the share of
tiles that rows from --beyond on visited, and the softmax mass that the audit saw captured.

Controls stand between the policies. A *window* chooses nothing: the first tile and the newest ones, of
about as many tiles as the policies beside it visit. It is `sampled` with a coverage that these tiles always
hold. A policy that is no better than it does not choose. The *best tiles* are as many as those of a window,
by the softmax mass of 16 true rows of 128 and without columns: they hold as much mass as the tiles with the
most true mass (`sluice-lab recall`), so they are nearly an oracle. The engine has no true one, which would
need all rows before it chooses; the document has one from outside.

Usage: python tools/sparse/loss_by_policy.py --model DIR --text FILE    (with the package sluice)
"""

import argparse
import pathlib
import sys

import numpy as np
import sluice

TILE = 128


def window(recent_tokens):
    return f"window of {recent_tokens}", "sampled+full", {
        "sparse_coverage": 1e-6, "sparse_column_tokens": 0, "sparse_recent_tokens": recent_tokens}


def best_tiles(tokens):
    """As many for every query tile: a coverage that is always held, and a least budget that fills up."""
    return f"best tiles, {tokens} tokens", "sampled+full", {
        "sparse_probe_rows": 16, "sparse_column_tokens": 0, "sparse_coverage": 1e-6,
        "sparse_min_budget_tokens": tokens}


def named(policy, **options):
    return " ".join([policy, *(f"{option.removeprefix('sparse_')} {value}" for option, value in options.items())]), \
        policy, options


# Name, policy, options.
POLICIES = [
    named("sampled+full"), named("sampled+full", sparse_coverage=0.9), named("sampled+full", sparse_coverage=0.8),
    named("xattention+full"), named("xattention+full", sparse_coverage=0.8),
    named("avgpool+full", sparse_topk_tokens=1024),
    window(1152), window(1024), window(512), window(256),
    best_tiles(1280), best_tiles(768), best_tiles(512),
    # As many tiles for every query tile, beside the best ones.
    named("sampled+full", sparse_coverage=1e-6, sparse_min_budget_tokens=1280),
    named("sampled+full", sparse_coverage=1e-6, sparse_min_budget_tokens=768),
]


def log_softmax(logits):
    """In place, of rows of float32 logits."""
    logits -= logits.max(axis=1, keepdims=True)
    for row in logits:
        row -= np.log(np.exp(row).sum(dtype=np.float64))
    return logits


def visible_tiles(num_tokens):
    num_tiles = -(-num_tokens // TILE)
    return num_tiles * (num_tiles + 1) // 2


def make_llm(arguments, policy, **options):
    return sluice.LLM(arguments.model, max_model_len=arguments.length + 1, max_num_seqs=arguments.beyond,
                      max_num_batched_tokens=arguments.beyond, sparse_policy=policy, **options)


def log_probabilities(llm, tokens, beyond):
    """float32 [len(tokens) - 1 - beyond, vocabulary]: of what follows each token from `beyond` on."""
    return log_softmax(np.array(llm.trace(tokens).logits[beyond:-1]))


def selection(llm, num_tokens, beyond):
    """Share of tiles that rows from `beyond` on visited, and the captured mass, of the one text that `llm` has read."""
    observations = llm.observations()
    prefill = observations["prefill"]
    before = visible_tiles(beyond) * prefill["tiles_visible"] // visible_tiles(num_tokens)
    density = (prefill["tiles_set"] - before) / (prefill["tiles_visible"] - before)
    return density, np.mean([layer["captured"] for layer in observations["captured_mass"]])


def with_error(values):
    return f"{values.mean():.4f} ± {values.std() / len(values) ** 0.5:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--length", type=int, default=8191)
    parser.add_argument("--beyond", type=int, default=4096)
    arguments = parser.parse_args()
    beyond = arguments.beyond
    llm = make_llm(arguments, "full")
    tokens = llm.tokenize(pathlib.Path(arguments.text).read_text(encoding="utf-8"))[:arguments.length]
    full = log_probabilities(llm, tokens, beyond)
    del llm  # the next one needs its memory
    each, following = np.arange(len(full)), np.array(tokens[beyond + 1:])
    full_loss = -full[each, following].astype(np.float64)
    print("| policy | loss | above full | KL | tiles | captured |\n|---|---|---|---|---|---|")
    print(f"| full | {full_loss.mean():.4f} | | | 100 % | |", flush=True)
    for name, policy, options in POLICIES:
        llm = make_llm(arguments, policy, sparse_audit=True, **options)
        rows = log_probabilities(llm, tokens, beyond)
        density, captured = selection(llm, len(tokens), beyond)
        del llm
        loss = -rows[each, following].astype(np.float64)
        rows -= full
        divergence = -np.einsum("ij,ij->i", np.exp(full), rows, dtype=np.float64)
        print(f"| {name} | {loss.mean():.4f} | {with_error(loss - full_loss)} | {with_error(divergence)} | "
              f"{100 * density:.1f} % | {captured:.3f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
