#!/usr/bin/env bash
# compute-sanitizer (memcheck, racecheck, synccheck) over the tests of ops and device: see run.sh.
#
#   tools/gpu/sanitize.sh [NAME...]
exec "$(dirname "$0")/run.sh" sanitize "$@"
