#!/usr/bin/env python3
"""Prints docs/measured/kernels.md: what the GPU benchmarks printed in one run.

    tools/gpu/measured.py LOGS >docs/measured/kernels.md

LOGS is the folder in which tools/gpu/run_bundle.sh left the output of each benchmark. `make
gpu-bench` calls this after a run of all benchmarks on a machine with a GPU.
"""

import sys
from datetime import date
from pathlib import Path

HEAD = """# Measured on a GPU

What the GPU benchmarks printed in one run, on {day}. `make gpu-bench` writes this file; do not edit
it. Each line has its bound, measured in the same run. [cuda_attention.md](../kernels/cuda_attention.md) and
[cuda_ops.md](../kernels/cuda_ops.md) say what the numbers mean, [benchmarks.md](../benchmarks.md) has whole models.
"""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    logs = sorted(Path(sys.argv[1]).glob("*_bench.log"))
    if not logs:
        sys.exit(f"measured.py: no *_bench.log in '{sys.argv[1]}'; give the folder of a run of gpu-bench")
    print(HEAD.format(day=date.today().isoformat()))
    for log in logs:
        lines = (line.rstrip() for line in log.read_text(encoding="utf-8").splitlines())
        print(f"## {log.stem}\n\n```text")
        print(*lines, sep="\n")
        print("```\n")


if __name__ == "__main__":
    main()
