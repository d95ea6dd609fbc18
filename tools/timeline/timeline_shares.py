#!/usr/bin/env python3
"""Prints how the device spends the time between a prompt and its next token: one row per timeline.

Reads files that `--timeline FILE` writes (docs/offload.md). A stretch begins with the first embedding
after a token was sampled and ends with the next `sample`, so a prefill of several passes is one
stretch. Of each file the last stretch is used, or the one given by --stretch; the first of a process
includes one-time work.

    python3 tools/timeline/timeline_shares.py resident.json chunked.json layerwise.json

Exit status: 0 done, 2 a file is not a timeline, or has no such stretch.
"""

import argparse
import sys
from pathlib import Path

from timeline import TimelineError, read_rows

EXIT_FAILED = 2
FIRST_OP, LAST_OP = "embedding", "sample"


def stretches(spans):
    """The stretches: lists of compute's spans, each from an embedding to the next sample."""
    result, current = [], []
    for span in spans:
        if current or span.name == FIRST_OP:
            current.append(span)
        if current and span.name == LAST_OP:
            result.append(current)
            current = []
    return result


def shares(spans):
    """Milliseconds of a stretch, and of its attention, matrix products, other ops, waiting and gaps."""
    whole = spans[-1].end - spans[0].begin
    time_of = {"attention": 0.0, "matmul": 0.0, "wait": 0.0, "other": 0.0}
    for span in spans:
        time_of[span.kind if span.kind in time_of else "other"] += span.end - span.begin
    gaps = whole - sum(time_of.values())
    return [us / 1e3 for us in (whole, time_of["attention"], time_of["matmul"], time_of["other"],
                                time_of["wait"] + gaps)]


def row_of(path, number):
    found = stretches(read_rows(path)["compute"])
    if not -len(found) <= number < len(found):
        raise TimelineError(f"--stretch: {number} is not one of the {len(found)} stretches of {path}; "
                            f"give 0 to {len(found) - 1}, or -1 for the last")
    whole, *parts = shares(found[number])
    return [Path(path).stem, f"{whole:.1f}", *(f"{part:.1f} ({part / whole:.1%})" for part in parts)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("timelines", nargs="+", help="what --timeline FILE has written, .json or .json.gz")
    parser.add_argument("--stretch", type=int, default=-1, help="which one, from 0 (-1: the last)")
    options = parser.parse_args()
    heads = ["timeline", "ms", "attention", "matrix products", "other ops", "waits, gaps"]
    try:
        rows = [heads, ["---"] * len(heads), *(row_of(path, options.stretch) for path in options.timelines)]
    except TimelineError as error:
        print(f"timeline_shares: {error}", file=sys.stderr)
        return EXIT_FAILED
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
