#!/usr/bin/env bash
# Installs the Python package in a virtual environment of its own and runs python/tests.
#
#   tools/python_test.sh [PYTEST ARGUMENTS...]
#
# PYTHON: the interpreter (python3). PYTHON_ENV: the environment, kept for the next run
# (${XDG_CACHE_HOME:-$HOME/.cache}/sluice-python). The build tools and what tests need come from
# PyPI; build/python-* keeps the build. SLUICE_CUDA: ON or OFF (OFF: tests run on the CPU).
#
# Exit status: that of pytest; 75 (EX_TEMPFAIL) and a line that begins with "skipped" if PyPI cannot
# be reached.
set -u
cd "$(dirname "$0")/.." || exit 1

environment="${PYTHON_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-python}"
# The first two are those of pyproject.toml. They stay in the environment, at paths that do not
# change: pip's own isolation would compile the module anew in every run.
packages="scikit-build-core==1.1.2 nanobind==3.1.0 numpy pytest>=9 mypy>=2 tqdm lm-eval==0.4.13"

. tools/own_folder.sh
# The stamp is written last: a directory without it, or with another one, is made anew.
make_environment() {
  [ "$(cat "$environment/packages" 2>/dev/null)" != "$packages" ] || return 0
  remake_own_folder "$environment" packages || return 1
  # shellcheck disable=SC2086  # a list of words
  "${PYTHON:-python3}" -m venv "$environment" &&
    "$environment/bin/python" -m pip --disable-pip-version-check install --quiet --retries 2 \
      --timeout 20 $packages && echo "$packages" >"$environment/packages"
}

mkdir -p "$(dirname "$environment")" || exit 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! make_environment >"$log" 2>&1; then
  echo "skipped: the Python package; its build tools could not be installed from PyPI:" \
    "$(tail -n 1 "$log")"
  exit 75
fi
# The name by which CMake finds the compiler: ccache then has the objects of the release build.
export CXX="${CXX:-c++}"
settings="--config-settings=cmake.define.SLUICE_CUDA=${SLUICE_CUDA:-OFF}"
if ! "$environment/bin/python" -m pip --disable-pip-version-check install --no-build-isolation \
  --no-deps --force-reinstall "$settings" . >"$log" 2>&1; then
  tail -n 40 "$log"
  exit 1
fi
# Not from the repository's root: there `import sluice` must find what was installed.
export TQDM_DISABLE=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
cd python/tests && "$environment/bin/python" -m pytest -p no:cacheprovider -q "$@"
