#!/usr/bin/env python3
"""Measures what a KV store saves and what it costs (docs/kv_store.md#measured).

    tools/store/measure.py restore [options] [-- OPTIONS OF RUN...]
    tools/store/measure.py behind  [options] [-- OPTIONS OF RUN...]

restore: one process computes a text and writes its KV, the next one reads it. Both answer the same
question: prints the time to the first token of both, and whether tokens and log-probabilities have
the same bits. On a GPU products of another height round differently, so bits are compared with those
of an answer that found the text in the first process's memory: it computes the same rows.

behind: prompts with and without a store in turn, each in a process of its own. Prints the medians of
pairs: time to the first token, time of a decode step, and processor time of the process.

A model without a tokenizer (-- --load-format dummy) has a token for each byte. Exit status: 1 if
bits differ or nothing was restored.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

QUESTION = "\n\nWhat is the secret number of the purple castle?"


class Run:
    """One process of `sluice run`: its results, and its processor time in seconds."""

    def __init__(self, options, text_file, num_prompts, store=None, num_tokens=16):
        command = [options.sluice, "run", "-m", options.model, "--json", "--temperature", "0",
                   "--ignore-eos", "--logprobs", "1", "-n", str(num_tokens), "-f", text_file,
                   "--max-num-seqs", "1", *options.run_options]
        if store:
            command += ["--kv-store", store, "--kv-store-min-tokens", "0"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command + [QUESTION] * num_prompts, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_seconds = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
        self.answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.stats = [answer["stats"] for answer in self.answers]

    def bits(self, index):
        return self.answers[index]["token_ids"], self.answers[index]["logprobs"]

    def store_counts(self):
        return self.answers[-1]["observations"]["kv_store"]


def drop_from_page_cache(folder):
    """As far as the kernel does that for a program that is not root."""
    for path in pathlib.Path(folder).rglob("*.kv"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def restore_once(options, text_file):
    with tempfile.TemporaryDirectory(dir=options.dir) as store:
        begin = time.monotonic()
        first = Run(options, text_file, 2, store)
        if not options.page_cache:
            drop_from_page_cache(store)
        second = Run(options, text_file, 1, store)
        read = second.store_counts()
        computed, restored = (run.stats[0]["first_token_seconds"] for run in (first, second))
        return {
            "prompt_tokens": second.stats[0]["prompt_tokens"],
            "restored_tokens": second.stats[0]["stored_tokens"],
            "computed_s": computed, "restored_s": restored, "share": restored / computed,
            "read_gb": read["read_bytes"] * 1e-9,
            "read_gb_per_s": read["read_bytes"] * 1e-9 / restored,
            "equals_computed": second.bits(0) == first.bits(0),
            "equals_cached": second.bits(0) == first.bits(1),
            "num_tokens": len(second.bits(0)[0]), "seconds": time.monotonic() - begin,
        }


def restore(options, text_file):
    rounds = []
    for _ in range(options.rounds):
        rounds.append(restore_once(options, text_file))
        print(json.dumps(rounds[-1]), flush=True)
    median = {key: statistics.median(one[key] for one in rounds)
              for key in ("computed_s", "restored_s", "share", "read_gb_per_s")}
    print(f"{rounds[0]['prompt_tokens']} tokens, {rounds[0]['read_gb']:.2f} GB: first token after "
          f"{median['computed_s']:.2f} s computed, {median['restored_s']:.3f} s restored "
          f"({100 * median['share']:.1f} %), {median['read_gb_per_s']:.2f} GB/s")
    wrong = [one for one in rounds if not one["equals_cached"] or one["restored_tokens"] == 0]
    print("bits: WRONG" if wrong else "bits: those of a computed context")
    return 1 if wrong else 0


def cost_of(run):
    """Of the only prompt: seconds to the first token and for each later one, processor seconds."""
    stats = run.stats[0]
    decode = stats["total_seconds"] - stats["first_token_seconds"]
    return {"prefill_s": stats["first_token_seconds"],
            "step_s": decode / max(1, stats["generated_tokens"] - 1),
            "cpu_s": run.cpu_seconds}


def behind(options, text_file):
    """The side that goes first changes with every pair."""
    pairs, written = [], None
    for i in range(options.rounds):
        costs = {}
        for with_store in (i % 2 == 0, i % 2 != 0):
            with tempfile.TemporaryDirectory(dir=options.dir) as store:
                run = Run(options, text_file, 1, store if with_store else None, options.decode_tokens)
                costs[with_store] = cost_of(run)
                written = run.store_counts() if with_store else written
        pairs.append(costs)
        print(json.dumps({"without": costs[False], "with": costs[True]}), flush=True)
    print(f"{written['blocks_written']} blocks, {written['written_bytes'] * 1e-9:.2f} GB written "
          f"by each run with a store; {written['blocks_skipped']} skipped")
    for key, name in (("prefill_s", "prefill"), ("step_s", "decode step"), ("cpu_s", "processor time")):
        shares = [pair[True][key] / pair[False][key] - 1 for pair in pairs]
        print(f"{name}: {100 * statistics.median(shares):+.1f} % with a store "
              f"({100 * min(shares):+.1f} to {100 * max(shares):+.1f}), {len(pairs)} pairs; without "
              f"{statistics.median(pair[False][key] for pair in pairs):.4f} s")
    return 0


def make_text(options, folder):
    """The first characters of the model's haystack, repeated if it is shorter."""
    text = pathlib.Path(options.text).read_text(encoding="utf-8")
    text = text * (options.characters // len(text) + 1)
    path = pathlib.Path(folder) / "text.txt"
    path.write_text(text[:options.characters], encoding="utf-8")
    return str(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("mode", choices=["restore", "behind"])
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--model", default="models/needle")
    parser.add_argument("--text", default="models/needle/haystack.txt")
    parser.add_argument("--characters", type=int, default=110_000)
    parser.add_argument("--dir", default="build", help="where stores are made, and removed again")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decode-tokens", type=int, default=64, help="of behind")
    parser.add_argument("--page-cache", action="store_true", help="read what was just written from memory")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:split])
    options.run_options = sys.argv[split + 1:]
    with tempfile.TemporaryDirectory() as folder:
        text_file = make_text(options, folder)
        return {"restore": restore, "behind": behind}[options.mode](options, text_file)


if __name__ == "__main__":
    sys.exit(main())
