// The tests of Jinja ("x is defined"), by name.
//
// Used by the parser, which refuses unknown ones, the interpreter and select. Thread rule: a table
// that never changes.
#pragma once

#include <string_view>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

struct TestCall {
  Run& run;
  std::string_view name;
  const Value& input;
  const Args& args;
};

struct TestEntry {
  std::string_view name;
  // Errors: kInvalidArgument for wrong arguments.
  bool (*apply)(const TestCall& call);
};

// Null for an unknown name.
const TestEntry* find_test(std::string_view name);

}  // namespace sluice::jinja
