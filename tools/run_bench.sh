#!/bin/sh
# Run by `make bench`: every benchmark, each with the bound that it measures in the same run.
#
#   tools/run_bench.sh build/bench
set -eu

build="$1"
run() {
  echo "== $*"
  "$@"
  echo
}

run "$build/sluice" doctor
run "$build/sluice-lab" load models/needle
run "$build/sluice-lab" tokenizer models/needle
run "$build/sluice" bench decode models/shapes/qwen3-0.6b
run "$build/sluice" bench prefill models/shapes/qwen3-0.6b
for program in "$build"/lab/kernels/*_bench; do
  run "$program"
done
