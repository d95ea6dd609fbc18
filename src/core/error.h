// fail() throws the public Error with a formatted text; SLUICE_CHECK aborts on our own mistakes.
//
// An expected outcome is a return value, a fault from outside is `Error`, a broken invariant of
// Sluice is a failed check. Thread rule: everything here may be used from any thread.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "sluice/error.h"

namespace sluice {

// Throws `Error{code}` with a message formatted by fmt.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Reports a broken invariant of Sluice itself and aborts; never returns. The builtins give the
// caller's file and line, as std::source_location would, which clang 14 lacks.
[[noreturn]] void check_failed(std::string_view condition, std::string_view message,
                               const char* file = __builtin_FILE(), int line = __builtin_LINE());

}  // namespace sluice

// Aborts with the condition, a formatted message, file and line if the condition is false. Also in
// release builds: it guards memory that kernels will touch and costs one branch.
#define SLUICE_CHECK(condition, ...)                                     \
  do {                                                                   \
    if (!(condition)) [[unlikely]] {                                     \
      ::sluice::check_failed(#condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                    \
  } while (false)
