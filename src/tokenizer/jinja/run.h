// Run: the limits of one rendering and the line that it has reached.
//
// Used by the interpreter and everything that it calls. A template comes with a model and a
// conversation from a client, so neither may cost more than these limits. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace sluice::jinja {

inline constexpr int64_t kMaxSteps = 10'000'000;
inline constexpr size_t kBytesPerStep = 256;  // copied text counts too
inline constexpr int kMaxDepth = 100;         // of nested syntax, values and macro calls
inline constexpr int64_t kMaxRange = 100'000;
inline constexpr size_t kOutputPerInput = 4;  // bytes of output for each byte of input
inline constexpr size_t kMinOutputLimit = size_t{64} << 20;

struct Run {
  int line = 1;
  int64_t steps_left = kMaxSteps;
  size_t max_text_bytes = kMinOutputLimit;  // of the output and of every text on the way to it

  // Counts steps. Errors: kInvalidArgument after kMaxSteps.
  void spend(size_t steps) {
    steps_left -= static_cast<int64_t>(steps);
    if (steps_left < 0) fail("the template needs more than {} steps", kMaxSteps);
  }

  // Counts the making of a text. Errors: kInvalidArgument past the limit.
  void spend_text(size_t bytes) {
    spend(1 + bytes / kBytesPerStep);
    check_size(bytes);
  }

  // Errors: kInvalidArgument for a text past the limit.
  void check_size(size_t bytes) const {
    if (bytes > max_text_bytes) {
      fail("a text of {} bytes is longer than the limit of {}", bytes, max_text_bytes);
    }
  }

  // Throws kInvalidArgument that names the line of the template.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    sluice::fail(ErrorCode::kInvalidArgument, "chat template, line {}: {}", line,
                 fmt::format(format, std::forward<Args>(args)...));
  }
};

}  // namespace sluice::jinja
