#!/usr/bin/env bash
# Makes the wheel (tools/make_wheel.sh), installs it in a virtual environment of its own and runs
# python/tests.
#
#   tools/python_test.sh [PYTEST ARGUMENTS...]
#
# PYTHON: the interpreter (python3). PYTHON_ENV: the environment, kept for the next run
# (${XDG_CACHE_HOME:-$HOME/.cache}/sluice-python). What tests need comes from PyPI; build/python-*
# keeps the build. SLUICE_CUDA: ON or OFF (OFF: tests run on the CPU).
#
# Exit status: that of pytest; 75 (EX_TEMPFAIL) and a line that begins with "skipped" if PyPI cannot
# be reached.
set -eu
cd "$(dirname "$0")/.."
. tools/python_environment.sh

environment="${PYTHON_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-python}"
need_python_environment "$environment" "numpy pytest>=9 mypy>=2 tqdm lm-eval==0.4.13" \
  "what tests of the Python package need"
tools/make_wheel.sh
wheels=out/wheel
[ "${SLUICE_CUDA:-OFF}" = OFF ] || wheels=out/wheel-cuda
"$environment/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps \
  --force-reinstall "$wheels"/*.whl
# Not from the repository's root: there `import sluice` must find what was installed.
export TQDM_DISABLE=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
cd python/tests && "$environment/bin/python" -m pytest -p no:cacheprovider -q "$@"
