#!/usr/bin/env python3
"""Measures how well sparse policies find needles and how much they move: the table of docs/measured/policies.md.

Runs `sluice-eval needle` once for each row of the grid below, with KV on the device and on the host, and
prints a Markdown table: needles found (mean scores for kinds of RULER), the share of tokens that
decode attended to, and the bytes that it loaded from host memory for each generated token. Rows that
were run before are read from --out, so an interrupted grid continues.

Usage, in a build directory with the program:
  python3 tools/sparse/needle_grid.py --program build/release/sluice-eval --model models/needle \\
      --kind number --lengths 4K,8K,16K --out build/needle-grid
Exit status: 0 done, 1 offloaded KV found other needles than resident KV, 2 a run failed.
"""

import argparse
import json
import pathlib
import subprocess
import sys

EXIT_DIFFERENT, EXIT_FAILED = 1, 2
DEPTHS = "0,25,50,75,100"
# RULER's tasks over words: their text is made whole, and nothing is hidden at a place of it.
KINDS_WITHOUT_DEPTHS = ("cwe", "fwe")
# Answers of these may be right in part; their cells are mean scores.
KINDS_WITH_SCORES = ("multikey", "multivalue", "vt", *KINDS_WITHOUT_DEPTHS)
# By default a GPU would keep all KV that fits, and nothing would move.
CHUNKED = ["--kv-offload", "chunked", "--kv-device-bytes", "0"]
LAYERWISE = ["--kv-offload", "layerwise", "--kv-device-bytes", "0"]
# No sink and no recent tokens, so that a row's budget is the number in its name.
BARE = ["--sparse-sink-tokens", "0", "--sparse-recent-tokens", "0"]


def quest(topk, page, where=CHUNKED):
    name = f"full+quest, topk {topk}, page {page}"
    return name, ["--sparse-policy", "full+quest", "--sparse-topk-tokens", str(topk),
                  "--sparse-page-tokens", str(page), *BARE, *where]


def window(policy, recent):
    return f"{policy}, sink 64, recent {recent}", ["--sparse-policy", policy, "--sparse-sink-tokens", "64",
                                                   "--sparse-recent-tokens", str(recent), *CHUNKED]


GRID = [("full, KV on the device", []), ("full, chunked", CHUNKED), ("full, layerwise", LAYERWISE),
        ("full+quest, topk 256, page 32, KV on the device", quest(256, 32, [])[1]),
        ("full+quest, topk 256, page 32, layerwise", quest(256, 32, LAYERWISE)[1]),
        *[quest(topk, 32) for topk in (32, 64, 128, 256, 512, 1024, 2048)],
        *[quest(topk, page) for page in (16, 64) for topk in (32, 64, 128, 256)],
        window("full+streaming", 1024), window("streaming", 1024)]
# The same arithmetic with KV at another place must give the same answers.
PAIRS = [("full, KV on the device", "full, chunked"), ("full, KV on the device", "full, layerwise"),
         ("full+quest, topk 256, page 32, KV on the device", "full+quest, topk 256, page 32"),
         ("full+quest, topk 256, page 32, layerwise", "full+quest, topk 256, page 32")]


def run_row(arguments, name, options):
    """The report of one row, from --out or from a run."""
    folder = pathlib.Path(arguments.out) / arguments.kind / name.replace(", ", "-").replace(" ", "_")
    path = folder / "needle.json"
    if not path.exists() or not json.loads(path.read_text()).get("complete"):
        command = [arguments.program, "needle", "--model", arguments.model, "--kind", arguments.kind,
                   "--lengths", arguments.lengths, "--needles", str(arguments.needles),
                   "--block-size", "256", "--out", str(folder)]
        if arguments.kind not in KINDS_WITHOUT_DEPTHS:
            command += ["--depths", arguments.depths or DEPTHS]
        print(f"running {name}", file=sys.stderr, flush=True)
        done = subprocess.run(command + options, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{' '.join(command + options)} failed:\n{done.stderr}", file=sys.stderr)
            sys.exit(EXIT_FAILED)
    return json.loads(path.read_text())


def answers(report):
    return [item["got"] for item in report["items"]]


def result(kind, items):
    if kind in KINDS_WITH_SCORES:
        return f"{100 * sum(item['score'] for item in items) / len(items):.1f} %"
    return f"{sum(item['correct'] for item in items)} of {len(items)}"


def table_row(name, kind, report, lengths):
    found = [result(kind, [item for item in report["items"] if item["length"] == length])
             for length in lengths]
    decode = report["observations"]["decode"]
    density = decode["density_selected"]
    moved = sum(layer["h2d_bytes"] for layer in decode["layers"]) / max(1, decode["tokens"])
    cells = [name, *found, "-" if density is None else f"{100 * density:.1f} %",
             f"{moved / 1024:.0f} KiB" if decode["layers"] else "-"]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="build/release/sluice-eval")
    parser.add_argument("--model", default="models/needle")
    parser.add_argument("--kind", default="number")
    parser.add_argument("--lengths", default="4K,8K,16K")
    parser.add_argument("--depths", help=f"percent, {DEPTHS} by default; not with "
                                         f"{' and '.join(KINDS_WITHOUT_DEPTHS)}")
    parser.add_argument("--needles", type=int, default=2)
    parser.add_argument("--out", default="build/needle-grid")
    arguments = parser.parse_args()
    if arguments.depths and arguments.kind in KINDS_WITHOUT_DEPTHS:
        parser.error(f"--depths: --kind {arguments.kind} has no depths; leave it out")

    reports = {name: run_row(arguments, name, options) for name, options in GRID}
    lengths = sorted({item["length"] for item in reports[GRID[0][0]]["items"]})
    header = ["policy", *[f"{length // 1024}K" for length in lengths], "selected", "moved per token"]
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for name, _ in GRID:
        print(table_row(name, arguments.kind, reports[name], lengths))

    differing = [pair for pair in PAIRS if answers(reports[pair[0]]) != answers(reports[pair[1]])]
    for a, b in differing:
        print(f"answers differ: {a} and {b}", file=sys.stderr)
    return EXIT_DIFFERENT if differing else 0


if __name__ == "__main__":
    sys.exit(main())
