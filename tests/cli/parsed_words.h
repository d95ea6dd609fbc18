// A command line as a program reads it, for tests of options. Each program of tests says which one.
//
// Thread rule: main thread of the test.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cli/options/option_set.h"
#include "sluice/error.h"

namespace sluice::cli {

using Words = std::vector<std::string>;

// The program whose command lines are parsed; defined once in a program of tests.
const ProgramSpec& program_under_test();

inline ParseOutcome parse_command_line(const Words& words) {
  return parse_words(program_under_test(), words);
}

// --help or --version: a text to print.
struct PrintCommand {
  std::string text;
};

template <typename T>
T parse(const Words& words) {
  const ParseOutcome outcome = parse_command_line(words);
  const auto* found = dynamic_cast<const InvocationWith<T>*>(outcome.invocation.get());
  if (found == nullptr) throw std::logic_error("another command: " + words.at(0));
  return found->options;
}

template <>
inline PrintCommand parse<PrintCommand>(const Words& words) {
  ParseOutcome outcome = parse_command_line(words);
  EXPECT_EQ(outcome.invocation, nullptr) << "a command to run";
  return {std::move(outcome.help)};
}

// The text of the error; "" when there is none.
inline std::string refusal(const Words& words) {
  try {
    (void)parse_command_line(words);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

inline Words warnings_of(const Words& words) { return parse_command_line(words).warnings; }

// Sets an environment variable for the length of a test.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedEnvironment() { unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace sluice::cli
