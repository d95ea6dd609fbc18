// expect_error: the text of the sluice::Error that an action throws, after checking its code.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"

namespace sluice {

template <typename Action>
std::string expect_error(ErrorCode code, Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error_code_name(error.code()), error_code_name(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

// True when `text` contains `part`; prints the text when it does not.
inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" lacks \"" << part << "\"";
}

// Expects an error whose text has all parts.
template <typename Action>
void expect_error_with(ErrorCode code, const Action& action,
                       const std::vector<std::string>& parts) {
  const std::string text = expect_error(code, action);
  for (const std::string& part : parts) EXPECT_TRUE(contains(text, part));
}

}  // namespace sluice
