#!/bin/sh
# Runs ccache; the arguments are its path and a compiler's command.
#
# GCC stores in a precompiled header the size and checksum of each file with "#pragma once". If a
# comment of such a file changes, the stored header no longer matches, and its users fail with
# "redefinition". By default ccache compares preprocessed text, without comments, and so returns the
# old precompiled header. CCACHE_DEPEND makes it compare whole files; the cost is that a changed
# comment compiles precompiled headers again. The name space hides wrong entries of older caches.
case "$*" in
  *.gch*) export CCACHE_DEPEND=1 CCACHE_NAMESPACE=whole_headers ;;
esac
exec "$@"
