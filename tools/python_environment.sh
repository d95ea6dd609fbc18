# shellcheck shell=bash
# For scripts that need a virtual environment with packages of PyPI. To be sourced.
. tools/own_folder.sh

# Makes DIRECTORY with PACKAGES, a list of words, or ends the script with status 75 and a line that
# begins with "skipped: WHAT". The stamp is written last: a directory without it, or with another
# one, is made anew. PYTHON: the interpreter (python3).
need_python_environment() { # DIRECTORY PACKAGES WHAT
  local directory="$1" packages="$2" what="$3" log
  [ "$(cat "$directory/packages" 2>/dev/null)" != "$packages" ] || return 0
  mkdir -p "$(dirname "$directory")" || exit 1
  log=$(mktemp)
  # shellcheck disable=SC2086  # a list of words
  if ! { remake_own_folder "$directory" packages && "${PYTHON:-python3}" -m venv "$directory" &&
    "$directory/bin/python" -m pip --disable-pip-version-check install --quiet --retries 2 \
      --timeout 20 $packages && echo "$packages" >"$directory/packages"; } >"$log" 2>&1; then
    echo "skipped: $what could not be installed from PyPI: $(tail -n 1 "$log")"
    rm -f "$log"
    exit 75
  fi
  rm -f "$log"
}
