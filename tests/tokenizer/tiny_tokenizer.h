// A tokenizer.json made in memory: the 256 bytes, and the merges and changes that a test needs.
//
// Used by the tokenizer's tests and its fuzz target. Thread rule: free functions without state.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json_type.h"

namespace sluice::testing {

// A character as UTF-8, for code points below U+0800.
inline std::string small_utf8(int c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
}

// How a byte is written in a byte-level vocabulary, by GPT-2's rule: visible Latin-1 as itself, the
// others from U+0100 on in order.
inline std::string byte_char(int byte) {
  const auto visible = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  if (visible(byte)) return small_utf8(byte);
  int hidden_before = 0;
  for (int b = 0; b < byte; ++b) hidden_before += visible(b) ? 0 : 1;
  return small_utf8(256 + hidden_before);
}

inline std::string byte_chars(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += byte_char(static_cast<unsigned char>(c));
  return text;
}

// Bytes have the ids 0 to 255; the results of the merges follow in order. Merges are given in raw
// bytes, not characters.
inline nlohmann::json tiny_tokenizer(
    const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[byte_char(byte)] = byte;
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    list.push_back({byte_chars(left), byte_chars(right)});
    const std::string result = byte_chars(left + right);
    if (!vocab.contains(result)) vocab[result] = vocab.size();
  }
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline nlohmann::json added_token(int id, std::string_view content, bool special) {
  return {{"id", id},        {"content", content}, {"special", special},  {"normalized", false},
          {"lstrip", false}, {"rstrip", false},    {"single_word", false}};
}

}  // namespace sluice::testing
