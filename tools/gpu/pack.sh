#!/usr/bin/env bash
# Packs test programs, benchmarks and what they need into one archive for a machine with a GPU.
#
#   tools/gpu/pack.sh [-b BUILD] [-o OUT] [-d] NAME...
#
#   NAME      a program (device_contract_test, copy_bench, sluice), a folder of tests (device, kv,
#             ops, engine, ...), `tests`, `benches` or `all`
#   -b BUILD  build folder of the preset cuda (build/cuda)
#   -o OUT    archive, or a folder when it ends with / (BUILD/sluice-gpu.tar.xz)
#   -d        also pack the models and golden files that tests/engine and sluice read (15 MB); not
#             needed where SLUICE_SOURCE_DIR names a checkout
#
# Build first: cmake --preset cuda && cmake --build --preset cuda --target gpu_programs
# Run there: run_bundle.sh, which is in the archive too.
set -euo pipefail
source_dir="$(cd "$(dirname "$0")/../.." && pwd)"

fail() {
  echo "pack.sh: $*" >&2
  exit 2
}

build="$source_dir/build/cuda" out="" data=""
while getopts "b:o:dh" option; do
  case "$option" in
    b) build="$OPTARG" ;;
    o) out="$OPTARG" ;;
    d) data=yes ;;
    *) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || fail "name at least one program; 'all' for everything"
list="$build/gpu_programs.txt"
[ -f "$list" ] || fail "no $list: configure with 'cmake --preset cuda' first"
[ -n "$out" ] || out="$build/sluice-gpu.tar.xz"

stage="$(mktemp -d)"
trap 'rm -rf "$stage"' EXIT
bundle="$stage/sluice-gpu"
mkdir -p "$bundle/bin" "$bundle/lib"
cp "$source_dir/tools/gpu/run_bundle.sh" "$bundle/"

# gpu_programs.txt has a line "kind folder path" for each program.
chosen() {
  local kind="$1" folder="$2" name="$3" want
  shift 3
  for want in "$@"; do
    case "$want" in
      all | "$name" | "$folder") return 0 ;;
      tests) [ "$kind" = test ] && return 0 ;;
      benches) [ "$kind" = bench ] && return 0 ;;
    esac
  done
  return 1
}

while read -r kind folder path; do
  name="$(basename "$path")"
  chosen "$kind" "$folder" "$name" "$@" || continue
  [ -x "$path" ] || fail "$name is not built: cmake --build --preset cuda --target gpu_programs"
  strip -o "$bundle/bin/$name" "$path"
  echo "$kind $folder $name" >>"$bundle/programs.txt"
done <"$list"
[ -f "$bundle/programs.txt" ] || fail "nothing is called '$*'; $list has the names"

# Shared libraries that another machine may lack. Not packed: the C and C++ runtimes and the driver,
# which every machine has, and CUDA's libraries, which are large and opened by name.
for program in "$bundle"/bin/*; do
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
done | sort -u | while read -r library; do
  case "$(basename "$library")" in
    libc.* | libm.* | libstdc++.* | libgcc_s.* | libpthread.* | libdl.* | librt.*) ;;
    libcu* | libnv*) ;;
    *) strip -o "$bundle/lib/$(basename "$library")" "$library" ;;
  esac
done

if [ -n "$data" ]; then
  mkdir -p "$bundle/data/tests"
  cp -r "$source_dir/models" "$bundle/data/"
  cp -r "$source_dir/tests/golden" "$bundle/data/tests/"
fi

case "$out" in
  */)
    mkdir -p "$out"
    if [ -e "${out}sluice-gpu" ] && ! [ -f "${out}sluice-gpu/programs.txt" ]; then
      fail "${out}sluice-gpu is no bundle; name another directory"
    fi
    rm -rf "${out:?}sluice-gpu"
    mv "$bundle" "$out"
    ;;
  *)
    mkdir -p "$(dirname "$out")"
    XZ_OPT="-9 -T1" tar -C "$stage" -cJf "$out" sluice-gpu
    echo "$out: $(wc -l <"$bundle/programs.txt") programs, $(du -h "$out" | cut -f1)"
    ;;
esac
