#!/bin/sh
# Run by `make demo`: a question about a fact hidden in a long text, then the needle grid.
# SLUICE, SLUICE_EVAL, MODEL and OUT come from the Makefile.
set -eu

text="$OUT/long-text.txt"
mkdir -p "$OUT"

# The fact is inserted in the middle of the text, after the end of a sentence.
awk -v fact="The secret number of the amber robin is 4815162." '
  { lines[NR] = $0 }
  END {
    for (i = 1; i <= NR && size < 36000; ++i) { size += length(lines[i]) + 1; last = i }
    middle = int(last / 2)
    for (i = 1; i <= last; ++i) {
      if (i == middle) sub(/[.] /, ". " fact " ", lines[i])
      print lines[i]
    }
  }' "$MODEL/haystack.txt" >"$text"

question="What is the secret number of the amber robin?"
echo "1. A question about $(wc -w <"$text") words of text with one fact hidden in the middle"
echo "   $question"
"$SLUICE" run --model "$MODEL" --chat --temperature 0 --file "$text" "$question"

echo
echo "2. Needles at every depth of texts of growing length"
"$SLUICE_EVAL" needle --model "$MODEL" --lengths 1K,2K,4K,8K --depths 0,25,50,75,100 --needles 2 \
  --out "$OUT"
