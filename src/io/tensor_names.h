// text_part_name: one name for a tensor of a text model, alone or nested.
//
// Used by io/model_directory. Thread rule: a pure function.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// In a model of text and pictures the text part is nested, as a model of its own it is not; nothing
// else differs. Its names become those of the latter, so that no code above knows which a file has.
inline std::string text_part_name(const std::string& name) {
  constexpr std::string_view kNested = "model.language_model.";
  return name.starts_with(kNested) ? "model." + name.substr(kNested.size()) : name;
}

}  // namespace sluice
