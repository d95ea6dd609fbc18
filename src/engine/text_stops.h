// Stop strings: where a text ends, and how much of it may be shown before that is certain.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct StopMatch {
  size_t position = 0;    // byte offset where the stop string begins
  std::string_view stop;  // views into the caller's list
};

// The stop string that begins first in `text`, of those that include at least one byte from
// `new_begin` on.
// Cost: linear in the new bytes and the stop strings, not in the text. REQUIRES: no empty string.
std::optional<StopMatch> find_stop(std::string_view text, size_t new_begin,
                                   const std::vector<std::string>& stops);

// Number of leading bytes of `text` that no stop string can still include.
size_t visible_size(std::string_view text, const std::vector<std::string>& stops);

}  // namespace sluice
