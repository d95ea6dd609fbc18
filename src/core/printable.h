// printable(): text from a file or a command line, made fit for an error message.
//
// Used wherever a message quotes text from outside: escape sequences must not reach the terminal,
// a newline must not look like a second message, and a long text must be cut.
// Thread rule: a free function without state.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice {

inline constexpr size_t kMaxShownChars = 80;

// At most `max_chars` bytes of `text`, "..." after them when there were more, and '?' in place of
// every byte that is no printable ASCII character.
std::string printable(std::string_view text, size_t max_chars = kMaxShownChars);

}  // namespace sluice
