#!/usr/bin/env bash
# Tries the tarball of tools/make_release.sh in new roots of Debian 12 and 13, which hold no
# compiler and none of the libraries of the build: `sluice version`, an answer of the bundled model
# with `run`, and one from `serve`.
#
#   tools/release_test.sh [SUITE...]      RELEASE_ROOTS: a folder for the roots, kept for the next
#                                         run (removed after it)
#
# Exit status: 75 (EX_TEMPFAIL) and a line that begins with "skipped" without root, debootstrap or
# Debian's archive.
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- bookworm trixie
skip() {
  echo "skipped: the release in clean roots: $*"
  exit 75
}
[ "$(id -u)" -eq 0 ] || skip "chroot needs root"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
version=$(sed -n 's/^project(sluice VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
tarball="out/sluice-$version-linux-$(uname -m).tar.gz"
[ -e "$tarball" ] || { echo "release_test: no $tarball; run make release" >&2; exit 1; }

roots="${RELEASE_ROOTS:-}"
server=""
work=$(mktemp -d)
clean_up() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
port=18431
fact="The secret number of the purple castle is 7391846."
question="$fact What is the secret number of the purple castle?"

# wait_for_server: until /health answers, at most a minute.
wait_for_server() {
  for _ in $(seq 120); do
    curl -sf "http://127.0.0.1:$port/health" >/dev/null && return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.5
  done
  echo "release_test: the server did not start" >&2
  return 1
}

try_in() {
  local root="$1" answer
  rm -rf "$root/opt/sluice" && mkdir -p "$root/opt/sluice"
  tar -C "$root/opt/sluice" --strip-components=1 -xzf "$tarball"
  cp -r models/needle "$root/opt/sluice/needle"
  chroot "$root" /opt/sluice/bin/sluice version
  answer=$(chroot "$root" /opt/sluice/bin/sluice run --model /opt/sluice/needle --chat \
    --temperature 0 "$question")
  echo "run: $answer"
  case "$answer" in *7391846*) ;; *) return 1 ;; esac
  chroot "$root" /opt/sluice/bin/sluice serve /opt/sluice/needle --port "$port" \
    >"$work/server.log" 2>&1 &
  server=$!
  wait_for_server || { tail -n 20 "$work/server.log" >&2; return 1; }
  answer=$(curl -sf "http://127.0.0.1:$port/v1/chat/completions" \
    -H 'Content-Type: application/json' \
    -d "{\"messages\": [{\"role\": \"user\", \"content\": \"$question\"}], \"temperature\": 0}")
  kill "$server"
  wait "$server" || true
  server=""
  echo "serve: $answer" | cut -c 1-300
  case "$answer" in *7391846*) ;; *) return 1 ;; esac
}

for suite; do
  root="${roots:-$work}/$suite"
  if [ ! -e "$root/bin/sh" ]; then
    mkdir -p "$(dirname "$root")"
    debootstrap --variant=minbase "$suite" "$root" >"$work/debootstrap.log" 2>&1 ||
      skip "$(tail -n 1 "$work/debootstrap.log")"
  fi
  echo "=== $suite"
  try_in "$root"
done
