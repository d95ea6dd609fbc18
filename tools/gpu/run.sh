#!/usr/bin/env bash
# Run by `make gpu-test`, `make gpu-bench` and `make gpu-sanitize`: builds the preset cuda and runs
# it if this machine has a GPU. Otherwise prints how to copy it to a machine that has one.
#
#   tools/gpu/run.sh test|bench|sanitize [NAME...]
#
# A run of all benchmarks on a GPU also writes docs/measured/kernels.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
mode="${1:?give test, bench or sanitize}"
shift

if ! PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin" command -v nvcc >/dev/null; then
  echo "skipped: no nvcc (install the CUDA toolkit, or set CUDA_HOME)"
  exit 0
fi
cmake --preset cuda -DSLUICE_BUILD_BENCH=ON >/dev/null
cmake --build --preset cuda --target gpu_programs

if ! nvidia-smi -L >/dev/null 2>&1; then
  tools/gpu/pack.sh -d all
  echo "skipped: no GPU. To run it elsewhere, copy build/cuda/sluice-gpu.tar.xz and" \
    "tools/gpu/run_bundle.sh to a machine with a GPU, and there:" \
    "bash run_bundle.sh sluice-gpu.tar.xz $mode"
  exit 0
fi
tools/gpu/pack.sh -o build/cuda/bundle/ all
is_whole_bench=false
[ "$mode" = bench ] && [ $# -eq 0 ] && is_whole_bench=true
if "$is_whole_bench"; then rm -f out/gpu/*_bench.log; fi  # of other runs
tools/with-gpu tools/gpu/run_bundle.sh build/cuda/bundle/sluice-gpu "$mode" "$@"
if "$is_whole_bench"; then
  python3 tools/gpu/measured.py out/gpu >out/gpu/measured.md
  mv out/gpu/measured.md docs/measured/kernels.md
fi
