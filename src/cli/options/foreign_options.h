// Answers for options of vLLM, llama.cpp and transformers: our name for it, or why there is none.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sluice::cli {

// One row: options of other programs with one answer.
struct ForeignOption {
  std::string_view names;   // separated by spaces
  std::string_view ours;    // our option, or "" if there is none
  std::string_view advice;  // appended to the answer, or the whole answer; may be ""
  // We use the same name with another meaning: answer only if a number follows it.
  bool before_number = false;
  // Values, separated by spaces, that ask for what Sluice does anyway: accepted, so that a start
  // line of another program goes on working.
  std::string_view satisfied_by = "";
};

// The whole table, for tests.
std::span<const ForeignOption> foreign_options();

// True if option `name` with this value asks for what Sluice does anyway.
bool asks_for_what_is(std::string_view name, std::string_view value);

// The answer for option `name` before the word `next` ("": none), in a command whose own options
// `has` knows. Empty if the command has this option, or if the table does not.
std::optional<std::string> foreign_answer(std::string_view name, std::string_view next,
                                          const std::function<bool(std::string_view)>& has);

}  // namespace sluice::cli
