// JSON for output: invalid UTF-8 (a cut character in a model's text) becomes U+FFFD, never a throw.
//
// Include only in .cc files; nlohmann/json.hpp is slow to compile. Thread rule: pure function.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace sluice::cli {

// On one line when `indent` is negative.
inline std::string json_text(const nlohmann::ordered_json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::cli
