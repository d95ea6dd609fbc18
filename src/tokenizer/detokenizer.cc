// Keeps back the bytes of an incomplete character only.
#include "tokenizer/detokenizer.h"

#include "tokenizer/unicode.h"

namespace sluice {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  std::string text;
  pending_.erase(0, unicode::append_repaired(pending_, true, text));
  return text;
}

std::string Detokenizer::finish() {
  std::string text;
  unicode::append_repaired(pending_, false, text);
  pending_.clear();
  return text;
}

}  // namespace sluice
