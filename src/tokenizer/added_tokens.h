// Added tokens: contents like <|im_end|> that are found in the text before anything else.
//
// Used by Tokenizer. Thread rule: an AddedTokenMatcher is immutable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

// An entry of tokenizer.json's added_tokens.
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // a control token: matched only where the caller allows it
  bool normalized = false;   // matched in the normalized text instead of the raw one
  bool single_word = false;  // only when no word character touches it
  bool lstrip = false;       // the match includes white space on its left
  bool rstrip = false;       // and on its right
};

// A part of a text with one rule for special tokens. It begins where the region before it ends.
struct TextRegion {
  size_t end = 0;
  bool parse_special = false;
};

// A part of a text: an added token, or plain text when `id` is negative.
struct TextPart {
  int32_t id = -1;
  size_t begin = 0;
  size_t end = 0;
};

// Finds a fixed set of added tokens.
class AddedTokenMatcher {
 public:
  // `tokens` with the content to look for in each; empty contents are no tokens.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens = {});

  // Splits `text` at its added tokens and appends the parts to `out`, without gaps; `regions` cover
  // all of it.
  //
  // At each position the longest content wins. A special token in a region that does not parse them
  // is skipped as a whole and stays text, as in the reference. No match crosses regions.
  // Time: bytes times the logarithm of the number of tokens.
  void split(std::string_view text, const std::vector<TextRegion>& regions,
             std::vector<TextPart>& out) const;

 private:
  struct Match {
    const AddedToken* token;
    size_t begin, end;
  };

  // The longest token whose content starts at the front of `text`, or null.
  const AddedToken* longest_at(std::string_view text) const;
  // Extends a match by its strip flags; false if the token needs a word border that is not there.
  bool accept(std::string_view text, size_t done, Match& match) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  bool first_byte_[256] = {};       // whether a content begins with the byte
};

}  // namespace sluice
