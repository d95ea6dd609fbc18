#!/bin/sh
# One question, then a conversation of two turns: the second message asks about the first.
#
#   examples/chat.sh [MODEL]       SLUICE: the program (sluice on the PATH)
set -eu
sluice="${SLUICE:-sluice}"
model="${1:-models/needle}"

"$sluice" run "$model" --chat --temperature 0 --max-tokens 32 \
  "The number of the castle is 7391846. What is the number of the castle?"

{
  echo "The capital of the hidden kingdom is Marlow."
  echo "What is the capital of the hidden kingdom?"
} |
  "$sluice" run "$model" --interactive --temperature 0 --max-tokens 32
