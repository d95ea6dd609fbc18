#!/bin/sh
# Runs ccache; the arguments are its path and a compiler's command.
#
# A precompiled header must be made of today's headers, comments too: GCC knows a file with "#pragma
# once" by its size and checksum, and its users fail with "redefinition" after a comment changed.
# ccache by default compares what the preprocessor made, without comments. The name space leaves
# out such entries of caches made without this.
case "$*" in
  *.gch*) export CCACHE_DEPEND=1 CCACHE_NAMESPACE=whole_headers ;;
esac
exec "$@"
