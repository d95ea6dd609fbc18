// What to answer to an option of vLLM, llama.cpp or transformers: ours, or why there is none.
//
// Used by option_set.cc for options that a command does not have. Thread rule: pure functions.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sluice::cli {

struct ForeignOption {
  std::string_view names;  // separated by blanks
  std::string_view ours;   // our option, or "" where the advice has all there is to say
  std::string_view advice;
  // Ours has this name as well, with another meaning: answered only where a number follows.
  bool before_number = false;
};

// The whole table, for tests.
std::span<const ForeignOption> foreign_options();

// What to say to the option `name` before the word `next` ("": none) in a command whose options
// `has` knows; nothing when it is the command's own, or unknown here too.
std::optional<std::string> foreign_answer(std::string_view name, std::string_view next,
                                          const std::function<bool(std::string_view)>& has);

}  // namespace sluice::cli
