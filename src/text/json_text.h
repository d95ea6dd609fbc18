// JSON for output. Invalid UTF-8, such as a character cut at the end of generated text, becomes
// U+FFFD instead of an exception.
#pragma once

#include <string>

#include "io/json_type.h"

namespace sluice {

// The text with a final newline; on one line if `indent` is negative.
inline std::string json_text(const nlohmann::ordered_json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sluice
