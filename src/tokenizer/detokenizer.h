// Detokenizer: the text of a growing list of ids, whole characters at a time.
//
// Used by the engine for streaming; one per request. Thread rule: belongs to one thread; the
// tokenizer may be shared.
#pragma once

#include <cstdint>
#include <string>

#include "tokenizer/tokenizer.h"

namespace sluice {

// The concatenated results of all calls equal Tokenizer::decode of all ids.
class Detokenizer {
 public:
  // Aliasing: `tokenizer` must outlive this object.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // Adds the next id and returns the characters that it completes, perhaps none. Bytes that cannot
  // become a character give U+FFFD as soon as that is known.
  std::string push(int32_t id);

  // Ends the text: bytes of a character that was never finished become one U+FFFD. The object is
  // then ready for another text.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // the first bytes of a character, at most 3
};

}  // namespace sluice
