#!/bin/sh
# Asks a long document two questions. KV of the document stays in a store on disk, so the second
# process reads it instead of computing it: look at the two lines that begin with "KV store".
#
#   examples/document_twice.sh [MODEL [DOCUMENT]]       SLUICE: the program (sluice on the PATH)
set -eu
sluice="${SLUICE:-sluice}"
model="${1:-models/needle}"
store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT

if [ $# -gt 1 ]; then
  document="$2"
else
  # 3,000 words with two facts in them.
  document="$store/document.txt"
  {
    head -c 6000 models/needle/haystack.txt
    echo "The secret number of the purple castle is 7391846."
    head -c 12000 models/needle/haystack.txt | tail -c 6000
    echo "The secret number of the silver bridge is 2805517."
  } >"$document"
fi

for question in "What is the secret number of the purple castle?" \
  "What is the secret number of the silver bridge?"; do
  "$sluice" run "$model" --chat --temperature 0 --max-tokens 32 --kv-store "$store/kv" \
    --kv-store-min-tokens 256 --file "$document" "$question"
done
