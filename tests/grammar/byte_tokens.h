// A vocabulary for tests of grammars: every byte, texts of several characters, an end token, and
// ids without a text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar.h"

namespace sluice {

inline constexpr int32_t kEndToken = 256;

inline TokenTable byte_tokens(const std::vector<std::string>& texts = {}) {
  TokenTable table;
  for (int i = 0; i < 256; ++i) table.bytes.emplace_back(1, static_cast<char>(i));
  table.bytes.emplace_back();
  table.end_ids = {kEndToken};
  table.bytes.insert(table.bytes.end(), texts.begin(), texts.end());
  table.bytes.resize(table.bytes.size() + 7);  // padding
  return table;
}

// The number of bytes of `text` that the matcher takes, one by one.
inline size_t accept_bytes(Matcher& matcher, const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (!matcher.accept(static_cast<unsigned char>(text[i]))) return i;
  }
  return text.size();
}

// Whether the whole text is one of the grammar's.
inline bool accepts(const Grammar& grammar, const std::string& text) {
  const auto matcher = grammar.make_matcher();
  return accept_bytes(*matcher, text) == text.size() && matcher->is_complete();
}

}  // namespace sluice
