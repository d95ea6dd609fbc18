// The global functions: raise_exception, strftime_now, namespace, range, dict, joiner.
//
// Used by the parser, which refuses calls of others, and the interpreter. Thread rule: free
// functions.
#pragma once

#include <ctime>
#include <string_view>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

bool is_function(std::string_view name);
// The function of this name as a value; `name` must outlive it. REQUIRES: is_function(name).
Value function_value(std::string_view name);

// Calls a function. `now` is the time of strftime_now.
// Errors: kInvalidArgument for wrong arguments, and the text of raise_exception.
Value call_function(Run& run, std::string_view name, const Args& args, const std::tm* now);

// Calls what joiner() gave: "" at first, then its separator.
Value call_joiner(Run& run, Joiner& joiner, const Args& args);

}  // namespace sluice::jinja
