// The byte-level alphabet: 256 printable characters that represent the 256 bytes in a vocabulary.
//
// Used while loading, to convert tokens to their bytes; encoding works on raw bytes.
// Thread rule: everything here may be used from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// All characters of the alphabet are below this.
inline constexpr char32_t kAlphabetEnd = 0x100 + 68;

// The bytes that `content` (valid UTF-8) represents; empty if a character is not of the alphabet.
//
// Source: GPT-2's bytes_to_unicode: printable Latin-1 stands for itself, the other 68 bytes follow
// from U+0100 in order, so a space is U+0120.
std::optional<std::string> bytes_of_token(std::string_view content);

}  // namespace sluice
