// Error: the one exception type of Sluice, and SLUICE_CHECK for our own mistakes.
//
// A fault from outside (a bad file, an impossible option, a device that fails) is an `Error` whose
// text names the thing, the value and the remedy. An expected outcome is a return value instead.
// Thread rule: `Error` is a value; everything here may be used from any thread.
#pragma once

#include <exception>
#include <source_location>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace sluice {

// What went wrong, coarse enough for a caller to act on. The command line maps these to exit codes.
enum class ErrorCode {
  kInvalidArgument,  // an option, a prompt or a parameter of a call
  kModel,            // a model directory, its configuration, weights or tokenizer
  kUnsupported,      // well-formed, but a thing Sluice does not do
  kDoesNotFit,       // memory, context length or another budget
  kIo,               // a file that cannot be read or written
  kDevice,           // a device, stream or asynchronous operation failed
  kCancelled,        // the user asked to stop
};

std::string_view error_code_name(ErrorCode code);

// A fault from outside.
//
// `message` is one sentence that names the thing, the value and the remedy; `context` says where it
// happened (a file, an op, a request) and may be empty. `what()` is "context: message".
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, std::string context = {});

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& context() const { return context_; }
  const char* what() const noexcept override { return what_.c_str(); }

  // The same error seen from further out: `outer` is put before the context.
  Error in(std::string_view outer) const;

 private:
  ErrorCode code_;
  std::string message_;
  std::string context_;
  std::string what_;
};

// Throws `Error{code}` with a message formatted by fmt.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Reports a broken invariant of Sluice itself and aborts; never returns.
[[noreturn]] void check_failed(std::string_view condition, std::string_view message,
                               std::source_location where = std::source_location::current());

}  // namespace sluice

// Aborts with the condition, a formatted message and the place when an invariant of ours is broken.
// It stays in release builds: it guards memory that kernels will touch and costs one branch.
#define SLUICE_CHECK(condition, ...)                                          \
  do {                                                                        \
    if (!(condition)) [[unlikely]] {                                          \
      ::sluice::check_failed(#condition, ::fmt::format("" __VA_ARGS__));      \
    }                                                                         \
  } while (false)
