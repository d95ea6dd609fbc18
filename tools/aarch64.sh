#!/usr/bin/env bash
# Compiles for aarch64 on x86 with Debian's cross compiler and runs tests under qemu-user: more than
# an hour on two cores.
#
#   tools/aarch64.sh [FOLDER...]      of tests/ (device ops engine server)
#
# Compiler and qemu come through apt; binfmt_misc in a user namespace needs Linux 6.7. The libraries
# of arm64 are not installed but unpacked in build/aarch64-root, since the packages libyaml-cpp-dev
# of two architectures exclude each other.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh aarch64

root="$PWD/build/aarch64-root" state="$PWD/build/aarch64-apt"
# apt with nothing installed and arm64 alone finds all that the libraries depend on.
arm64_apt() {
  apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::Cache="$state" \
    -o Dir::State::Lists="$state/lists" -o Dir::State::status="$state/status" \
    -o Debug::NoLocking=1 -o APT::Sandbox::User=root "$@"
}
unpack_root() {
  local boost package link target
  boost=$(dpkg-query -S /usr/include/boost/version.hpp | cut -d : -f 1)
  mkdir -p "$state/lists/partial" "$state/archives/partial" "$root"
  : >"$state/status"
  arm64_apt update
  arm64_apt install -y --no-install-recommends --download-only libc6-dev libfmt-dev \
    nlohmann-json3-dev libxxhash-dev libutf8proc-dev libyaml-cpp-dev "$boost" libssl-dev \
    libgtest-dev
  for package in "$state"/archives/*.deb; do dpkg -x "$package" "$root"; done
  find "$root" -type l -lname '/*' -printf '%p %l\n' | while read -r link target; do
    ln -sfr "$root$target" "$link"
  done
  touch "$root/complete"
}
[ -e "$root/complete" ] || unpack_root

# Programs that tests start run under qemu, too, by a rule of the kernel that a user namespace keeps
# to itself.
run_tests() {
  # shellcheck disable=SC2016  # of the inner shell
  unshare --user --map-root-user --mount bash -c 'set -e
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register
    export QEMU_LD_PREFIX="$0"
    exec ctest --output-on-failure --no-tests=error -j 2 -LE "gpu|slow" "$@"' \
    "$root" "$@"
}

cmake --preset release -B build/aarch64 --toolchain cmake/aarch64.cmake -DSLUICE_BUILD_TESTS=ON
cmake --build build/aarch64 --target sluice_cli
[ $# -gt 0 ] || set -- device ops engine server
for folder; do
  cmake --build build/aarch64 --target "tests/$folder/all"
  run_tests --test-dir "build/aarch64/tests/$folder"
done
