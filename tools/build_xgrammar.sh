#!/bin/sh
# Fetches and compiles xgrammar, which structured output needs (src/grammar): once, outside of the
# build folder, so that every build finds it. Prints nothing if that was done before.
#
#   tools/build_xgrammar.sh
#
# SLUICE_DEPS_DIR: where (${XDG_CACHE_HOME:-$HOME/.cache}/sluice-deps). Two minutes of one core.
# Its own CMakeLists.txt is not used: it asks for Python bindings, and its objects only link with
# the linker plugin of one compiler. Exit status: 0, or 75 (EX_TEMPFAIL) if PyPI cannot be reached.
set -eu
cd "$(dirname "$0")/.."

version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
# Its messages go to functions of src/grammar instead of stderr.
flags="-std=c++17 -O2 -DNDEBUG -fPIC -fno-semantic-interposition -DXGRAMMAR_LOG_CUSTOMIZE=1
  -DXGRAMMAR_ENABLE_CPPTRACE=0 -DXGRAMMAR_ENABLE_INTERNAL_CHECK=0"

deps="${SLUICE_DEPS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-deps}"
target="$deps/xgrammar-$version"
stamp="$sha256 $(g++ -dumpfullversion) $(uname -m) $flags"
[ "$(cat "$target/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

echo "setup: compiling xgrammar $version for structured output"
source=$(python3 tools/sdist.py xgrammar "$version" "$sha256" "$deps/sources" \
  cpp/ include/ 3rdparty/picojson/ 3rdparty/dlpack/include/ LICENSE NOTICE)
made="$target.new"
rm -rf "$made"
mkdir -p "$made/objects" "$made/include"
cp -r "$source/include/xgrammar" "$source/3rdparty/dlpack/include/dlpack" "$made/include/"
find "$source/cpp" -name '*.cc' ! -path '*/tvm_ffi/*' | sort | awk '{ print NR ".o", $0 }' |
  xargs -P "$(getconf _NPROCESSORS_ONLN)" -n 2 sh -c 'object=$1/objects/$3 file=$4
    g++ $2 -I"$0/include" -isystem "$0/3rdparty/picojson" \
      -isystem "$0/3rdparty/dlpack/include" -c "$file" -o "$object"' \
    "$source" "$made" "$(echo $flags)"
# One object, which becomes a part of the library that others link: nothing else to find for them.
g++ -r -nostdlib -o "$made/xgrammar.o" "$made"/objects/*.o
rm -rf "$made/objects"
echo "$stamp" >"$made/stamp"
rm -rf "$target"
mv "$made" "$target"
