#!/usr/bin/env bash
# Opens the page of `sluice serve` in a browser and uses it as people do: with the bundled model.
#
#   tools/page_test.sh [--pictures DIR]     DIR also gets the pictures of the documents
#
# SLUICE: the program (build/release/sluice). MODEL: its model (models/needle). PAGE_FILES: where
# the page's files are instead of in the program: src/server/page, while they are edited. PAGE_DIR:
# the virtual environment with Playwright, kept for the next run
# (${XDG_CACHE_HOME:-$HOME/.cache}/sluice-page). The browser is Debian's chromium.
#
# Exit status: 0 passed, 1 a failure, 2 usage, 75 (EX_TEMPFAIL) Playwright could not be installed.
set -u
cd "$(dirname "$0")/.." || exit 1

export SLUICE="${SLUICE:-build/release/sluice}" MODEL="${MODEL:-models/needle}"
environment="${PAGE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-page}"
packages="playwright==1.65.2 axe-playwright-python==0.1.8"

if ! [ -x "$SLUICE" ]; then
  echo "page_test.sh: $SLUICE is no program; build it (make demo) or set SLUICE" >&2
  exit 2
fi
. tools/own_folder.sh
tools/setup.sh page || exit 1
if [ "$(cat "$environment/package" 2>/dev/null)" != "$packages" ]; then
  mkdir -p "$(dirname "$environment")"
  remake_own_folder "$environment" package >&2 || exit 2
  # shellcheck disable=SC2086  # a list of words
  if ! { python3 -m venv "$environment" && "$environment/bin/python" -m pip \
    --disable-pip-version-check install --quiet --retries 2 --timeout 20 $packages; } \
    >"$environment.log" 2>&1; then
    echo "skipped: $packages could not be installed from PyPI: $(tail -n 1 "$environment.log")"
    exit 75
  fi
  echo "$packages" >"$environment/package"
fi
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 PYTHONDONTWRITEBYTECODE=1
exec "$environment/bin/python" tools/page/check_page.py "$@"
