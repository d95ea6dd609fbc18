// Stop strings: where a text ends, and how much of it may be shown before that is known.
//
// Used by LlmEngine after every token. Thread rule: free functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct StopMatch {
  size_t position = 0;  // byte offset where the stop string begins
  std::string_view stop;
};

// The earliest stop string in `text`, looking only where the bytes from `new_begin` on take part.
// Cost: linear in the new bytes and the stop strings, so a long answer stays cheap.
std::optional<StopMatch> find_stop(std::string_view text, size_t new_begin,
                                   const std::vector<std::string>& stops);

// How many bytes of `text` cannot be part of a stop string that is still to be completed.
size_t visible_size(std::string_view text, const std::vector<std::string>& stops);

}  // namespace sluice
