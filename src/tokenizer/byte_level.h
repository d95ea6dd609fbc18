// The byte-level alphabet: 256 printable characters that stand for the 256 bytes in a vocabulary.
//
// Used while loading, to turn tokens into the bytes they mean; encoding itself works on raw bytes.
// Thread rule: everything here may be used from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// The bytes that `content` (valid UTF-8) spells, or nothing when a character of it is no byte.
//
// Source: GPT-2's bytes_to_unicode: printable Latin-1 stands for itself, the other 68 bytes follow
// from U+0100 in order, so a space is U+0120.
std::optional<std::string> bytes_of_token(std::string_view content);

}  // namespace sluice
