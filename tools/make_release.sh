#!/usr/bin/env bash
# Makes out/sluice-VERSION-SYSTEM.tar.gz: the program, its manual page, completion, the files of
# deploy/ and the licences. The program needs nothing but the C library: on x86-64 glibc 2.28 or
# newer (python/bindings/old_glibc.cc), elsewhere not older than that of the system that built it;
# with CUDA also the driver and libcublasLt.
#
#   tools/make_release.sh      SLUICE_CUDA: ON or OFF (OFF)
#
# Ends with status 1 if the program needs another library.
set -eu
cd "$(dirname "$0")/.."

build=build/static
cmake --preset release -B "$build" -DSLUICE_STATIC=ON -DSLUICE_BUILD_TESTS=OFF \
  -DSLUICE_CUDA="${SLUICE_CUDA:-OFF}" >/dev/null
cmake --build "$build" --target sluice_cli

version=$("$build/sluice" version | awk '{ print $2 }')
name="sluice-$version-linux-$(uname -m)"
stage="out/$name"
rm -rf "$stage"
mkdir -p "$stage"/bin "$stage"/share/{man/man1,doc/sluice/third-party,fish/vendor_completions.d} \
  "$stage"/share/{bash-completion/completions,zsh/site-functions}
strip -o "$stage/bin/sluice" "$build/sluice"

# What is linked statically or is headers alone; its terms ask for a copy.
packages="libssl-dev libxxhash-dev libutf8proc-dev libfmt-dev libyaml-cpp-dev nlohmann-json3-dev"
packages+=" $(dpkg-query -S /usr/include/boost/version.hpp | cut -d : -f 1) libstdc++6"
if pkg-config --static --libs libcrypto | grep -q -- -lzstd; then
  packages+=" zlib1g-dev libzstd-dev"
fi
for package in $packages; do
  cp -L "/usr/share/doc/$package/copyright" "$stage/share/doc/sluice/third-party/$package"
done
cp LICENSE README.md "$stage/share/doc/sluice/"
cp -r deploy "$stage/share/doc/sluice/deploy"

sluice="$stage/bin/sluice"
"$sluice" man >"$stage/share/man/man1/sluice.1"
"$sluice" completion bash >"$stage/share/bash-completion/completions/sluice"
"$sluice" completion zsh >"$stage/share/zsh/site-functions/_sluice"
"$sluice" completion fish >"$stage/share/fish/vendor_completions.d/sluice.fish"

needed=$(objdump -p "$sluice" | awk '/NEEDED/ { print $2 }' |
  grep -Ev '^(libc|libm|libdl|libpthread|librt|ld-linux-x86-64|ld-linux-aarch64)\.so' || true)
if [ -n "$needed" ]; then
  echo "make_release: the program needs $needed" >&2
  exit 1
fi
tar -C out --owner=0 --group=0 -czf "out/$name.tar.gz" "$name"
oldest=$(objdump -T "$sluice" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "out/$name.tar.gz: $(du -h "out/$name.tar.gz" | cut -f 1), needs $oldest"
