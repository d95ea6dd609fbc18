#!/usr/bin/env bash
# Runs what tools/gpu/pack.sh packed, on a machine with a GPU, and prints one table.
#
#   run_bundle.sh [-l LOGS] [-t SECONDS] [-f FILTER] [-s TOOLS] BUNDLE [MODE] [NAME...]
#
#   BUNDLE      the archive, or its unpacked folder
#   MODE        test: every test program on the GPU (the default)
#               bench: every benchmark
#               sanitize: compute-sanitizer over the tests of ops, device and lab, and over runs of
#               sluice with KV in host memory (NAME offload)
#   NAME        only these programs
#   -l LOGS     folder for whole outputs (out/gpu)
#   -t SECONDS  limit of one program (300; sanitize 900)
#   -f FILTER   --gtest_filter for every test program
#   -s TOOLS    of compute-sanitizer ("memcheck racecheck synccheck")
#
# Needs bash and the driver. Tests that read models find them in the bundle (pack.sh -d), or in the
# checkout that SLUICE_SOURCE_DIR names (the current folder). Exits with 1 when anything failed, and
# with 0 and "skipped: no GPU" where there is none.
set -uo pipefail

fail() {
  echo "run_bundle.sh: $*" >&2
  exit 2
}

logs="out/gpu" limit="" filter="*" tools="memcheck racecheck synccheck"
while getopts "l:t:f:s:h" option; do
  case "$option" in
    l) logs="$OPTARG" ;;
    t) limit="$OPTARG" ;;
    f) filter="$OPTARG" ;;
    s) tools="$OPTARG" ;;
    *) sed -n '2,21s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || fail "name the bundle"
bundle="$1" mode="${2:-test}"
shift $(($# > 1 ? 2 : 1))
case "$mode" in
  test | bench) limit="${limit:-300}" ;;
  sanitize) limit="${limit:-900}" ;;
  *) fail "unknown mode '$mode'; give test, bench or sanitize" ;;
esac

if ! nvidia-smi -L 2>/dev/null; then
  echo "skipped: no GPU"
  exit 0
fi
if [ -f "$bundle" ]; then
  unpacked="$(mktemp -d)"
  trap 'rm -rf "$unpacked"' EXIT
  tar -C "$unpacked" -xf "$bundle" || fail "cannot unpack $bundle"
  bundle="$unpacked/sluice-gpu"
fi
[ -f "$bundle/programs.txt" ] || fail "$bundle is no bundle of pack.sh"
mkdir -p "$logs"

export LD_LIBRARY_PATH="$bundle/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export SLUICE_TEST_DEVICE=cuda
if [ -z "${SLUICE_SOURCE_DIR:-}" ]; then
  SLUICE_SOURCE_DIR="$PWD"
  [ ! -d "$bundle/data" ] || SLUICE_SOURCE_DIR="$bundle/data"
fi
export SLUICE_SOURCE_DIR

num_failed=0 num_run=0
# row NAME RESULT LOG SECONDS: a line of the table, with GoogleTest's counts where there are any.
row() {
  local passed failed skipped
  passed="$(grep -oP '^\[  PASSED  \] \K\d+' "$3" | tail -n 1)"
  failed="$(grep -cP '^\[  FAILED  \] .*(\)|ms\))$' "$3")"
  skipped="$(grep -oP '^\[  SKIPPED \] \K\d+' "$3" | tail -n 1)"
  printf '%-42s %-9s %6s %6s %7s %8s\n' "$1" "$2" "${passed:--}" "$failed" "${skipped:-0}" "$4"
}

# execute LABEL PROGRAM COMMAND...: runs it, with its output in a file, and prints its line.
execute() {
  local label="$1" log start code result seconds
  shift
  log="$logs/$(echo "$label" | tr ' /' '__').log"
  start="$(date +%s.%N)"
  timeout "$limit" "$@" >"$log" 2>&1
  code=$?
  num_run=$((num_run + 1))
  case "$code" in
    0) result=ok ;;
    124) result="TIMEOUT" ;;
    *) result="FAILED $code" ;;
  esac
  [ "$code" -eq 0 ] || num_failed=$((num_failed + 1))
  seconds="$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')"
  row "$label" "$result" "$log" "$seconds"
}

# Programs of a kind whose folder matches a pattern, or those that were named.
selected() {
  local kind folder name
  while read -r kind folder name; do
    [ "$kind" = "$1" ] || continue
    if [ ${#names[@]} -gt 0 ]; then
      [[ " ${names[*]} " == *" $name "* ]] && echo "$name"
    elif [[ "$folder" =~ $2 ]]; then
      echo "$name"
    fi
  done <"$bundle/programs.txt"
}

# sanitized TOOL LABEL COMMAND...: runs COMMAND with compute-sanitizer. Failing API calls are not
# reported, since some tests provoke them. racecheck does not recognise the barriers of cuBLAS's
# kernels (nvjet) and would report accesses that they order.
sanitized() {
  execute "$1 $2" compute-sanitizer --tool "$1" --error-exitcode 9 --report-api-errors no \
    --kernel-name-exclude kernel_substring=nvjet "${@:3}"
}

# Tests of large matrix products.
with_large_products="matmul_test activation_test"

# A short prompt through the ring and a few decode steps, with all history, with listed pages, hot
# ones among them, and with drafts.
# Passes have at most 16 rows: larger products use cuBLAS's kernels, which crash under racecheck.
sanitize_offload() {
  local run=("$bundle/bin/sluice" bench offload "$SLUICE_SOURCE_DIR/models/needle"
    --modes chunked --decode-tokens 6 --repeats 0 --slots 2 --slot-blocks 4)
  local short=(--lengths 320 --block-size 16 --chunks 16 --max-num-batched-tokens 16)
  local pages=(--sparse-page-tokens 16 --sparse-topk-tokens 64 --sparse-recent-tokens 16)
  if [ ! -x "${run[0]}" ] || [ ! -x "${run[0]}-lab" ]; then
    echo "skipped: runs with KV in host memory, since the bundle has no sluice or no sluice-lab"
    return
  fi
  sanitized "$1" "offload, full" "${run[@]}" "${short[@]}" --device-bytes 0
  sanitized "$1" "offload, quest" "${run[@]}" "${short[@]}" "${pages[@]}" --device-bytes 0 \
    --sparse-policy full+quest
  sanitized "$1" "offload, hot pages" "${run[@]}" "${short[@]}" "${pages[@]}" \
    --device-bytes 256K --sparse-policy full+quest
  sanitized "$1" "offload, speculation" "$bundle/bin/sluice-lab" speculative \
    "$SLUICE_SOURCE_DIR/models/needle" --lengths 320 --counts 4 --accept 80 --decode-tokens 12 \
    --repeats 1 --block-size 16 --num-kv-slots 2 --kv-slot-blocks 4 --kv-device-bytes 256K \
    --max-num-batched-tokens 16 --prefill-chunk-tokens 16 "${pages[@]}"
  # Prefill that selects takes whole scopes, which are larger passes.
  [ "$1" != racecheck ] || return 0
  local policy
  for policy in sampled+quest xattention+quest minference+quest flexprefill+full avgpool+full; do
    sanitized "$1" "offload, $policy" "${run[@]}" --device-bytes 0 --lengths 6K \
      --block-size 128 --chunks 4K --sparse-policy "$policy"
  done
}

names=("$@")
printf '%-42s %-9s %6s %6s %7s %8s\n' program result passed failed skipped seconds
case "$mode" in
  test)
    for name in $(selected test .); do
      execute "$name" "$bundle/bin/$name" "--gtest_filter=$filter"
    done
    ;;
  bench)
    for name in $(selected bench .); do
      execute "$name" "$bundle/bin/$name"
      cat "$logs/$name.log"
    done
    ;;
  sanitize)
    command -v compute-sanitizer >/dev/null ||
      fail "no compute-sanitizer here; it is in the CUDA toolkit"
    for tool in $tools; do
      for name in $(selected test '^(ops|device|lab)$'); do
        if [ "$tool" = racecheck ] && [[ " $with_large_products " == *" $name "* ]]; then
          echo "skipped: racecheck $name, since cuBLAS's kernels crash under racecheck"
          continue
        fi
        # Death tests crash on purpose.
        sanitized "$tool" "$name" "$bundle/bin/$name" "--gtest_filter=$filter-*Death*"
      done
      [[ ${#names[@]} -gt 0 && " ${names[*]} " != *" offload "* ]] || sanitize_offload "$tool"
    done
    ;;
esac

[ "$num_run" -gt 0 ] || fail "the bundle has nothing to $mode"
echo "$((num_run - num_failed)) of $num_run ok; whole outputs in $logs"
[ "$num_failed" -eq 0 ]
