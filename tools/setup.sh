#!/bin/sh
# Installs what is missing on Debian 12 or 13, or Ubuntu 24.04, to build Sluice, through apt only.
#
#   tools/setup.sh build     to build and run the demo
#   tools/setup.sh test      and to run the tests
#   tools/setup.sh bench     to build the benchmarks, with oneDNN to compare with
#   tools/setup.sh model     to get a real model (make smollm2)
#   tools/setup.sh page      to test the page in a browser
#   tools/setup.sh python   to install the Python package (pip install .)
#   tools/setup.sh load-tools   to load the server with programs of Debian (make client-test)
#   tools/setup.sh silent-peer   to cut the link of its clients (make client-test)
#   tools/setup.sh kv-events   to send KV events to routers (make client-test)
#   tools/setup.sh aarch64   to compile for aarch64 and run that (make aarch64-test)
#   tools/setup.sh ci        as test, and for .ci/run
#
# Uses root or sudo only when something is missing. Prints nothing if nothing is missing, else apt's
# progress: one line that changes on a terminal, else one line for each tenth.
set -eu

# 1.81 or later: Debian 12's default is older. Debian 13's libcrypto.a needs the other two.
boost=libboost-dev
static="zlib1g-dev libzstd-dev"
if grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release; then boost=libboost1.81-dev static=""; fi

build="build-essential cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev
  libxxhash-dev libutf8proc-dev libyaml-cpp-dev $boost $static libssl-dev librsvg2-bin
  fonts-dejavu-core"
test="libgtest-dev ccache lld python3 python3-yaml libzmq5"
bench="libdnnl-dev"
model="python3 python3-venv"
page="python3 python3-venv chromium fonts-inter fonts-noto-core"
python="python3 python3-venv python3-dev"
ci="clang-format clang-tidy procps"
load_tools="slowhttptest wrk"
silent_peer="iproute2"
kv_events="libzmq5"
aarch64="g++-aarch64-linux-gnu qemu-user-static"

case "${1:-build}" in
  build) packages="$build" ;;
  test) packages="$build $test" ;;
  bench) packages="$build $bench" ;;
  model) packages="$model" ;;
  page) packages="$page" ;;
  python) packages="$build $python" ;;
  ci) packages="$build $test $ci" ;;
  aarch64) packages="$build $test $aarch64" ;;
  load-tools) packages="$load_tools" ;;
  silent-peer) packages="$silent_peer" ;;
  kv-events) packages="$kv_events" ;;
  *)
    echo "setup.sh: unknown set '$1'; give build, test, bench, model, page, python, ci," \
      "aarch64, load-tools, silent-peer or kv-events" >&2
    exit 2
    ;;
esac

# Prints the lines of APT::Status-Fd, "dlstatus:1:12.5:..." and "pmstatus:g++:80.0:...", as
# progress, and appends all others to the file $1.
show_progress() {
  said="" next=0
  while IFS= read -r line; do
    case "$line" in
      dlstatus:*) phase=downloading ;;
      pmstatus:*) phase=installing ;;
      *)
        printf '%s\n' "$line" >>"$1"
        continue
        ;;
    esac
    # The first field that is a number; names of packages may have a colon.
    share=$(expr "$line" : '.*:\([0-9][0-9]*\)\.[0-9]*:' || true)
    [ -n "$share" ] || continue
    if [ -t 2 ]; then
      printf '\rsetup: %s, %s %%   ' "$phase" "$share" >&2
    elif [ "$phase" != "$said" ] || [ "$share" -ge "$next" ]; then
      echo "setup: $phase, $share %"
      next=$((share / 10 * 10 + 10)) said=$phase
    fi
  done
  [ ! -t 2 ] || printf '\r%-40s\r' "" >&2
}

missing=""
for package in $packages; do
  dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
    missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup.sh: this system has no apt; install by hand what these packages hold:$missing" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup.sh: neither root nor sudo; ask for: apt-get install$missing" >&2
    exit 1
  fi
  as_root="sudo"
fi

log=$(mktemp)
trap 'rm -f "$log" "$log.status"' EXIT
echo "setup: reading the lists of packages"
# The package lists may be old or absent (a fresh container). If the update fails, apt uses those
# that it has.
$as_root apt-get update -q >"$log" 2>&1 || echo "setup: apt-get update failed; using the lists here"
echo "setup: installing$missing"
# shellcheck disable=SC2086  # a list of words
$as_root apt-get install -y -qq --no-install-recommends --print-uris $missing 2>/dev/null |
  awk '/^\047/ { bytes += $3; ++files }
    END { if (files) printf "setup: %d packages, %d MB to download\n", files, bytes / 1e6 }'
# A shell makes the descriptor of the progress behind sudo, which closes all but three. apt closes
# it for the scripts of packages, so it is not that of standard output.
# shellcheck disable=SC2086,SC2016  # a list of words; of the inner shell
{
  $as_root env DEBIAN_FRONTEND=noninteractive sh -c 'exec apt-get install -y -q \
    -o APT::Status-Fd=3 --no-install-recommends "$@" 3>&1 2>&1' sh $missing &&
    echo 0 >"$log.status"
} | show_progress "$log"
if [ ! -e "$log.status" ]; then
  tail -n 20 "$log" >&2
  echo "setup.sh: apt-get could not install:$missing" >&2
  exit 1
fi
