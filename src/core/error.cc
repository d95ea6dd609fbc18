// Composes error texts; prints a failed check and aborts.
#include "core/error.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace sluice {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kModel:
      return "model";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kDoesNotFit:
      return "does not fit";
    case ErrorCode::kIo:
      return "input/output";
    case ErrorCode::kDevice:
      return "device";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string message, std::string context)
    : code_(code), message_(std::move(message)), context_(std::move(context)) {
  what_ = context_.empty() ? message_ : context_ + ": " + message_;
}

Error Error::in(std::string_view outer) const {
  std::string context(outer);
  if (!context_.empty()) context += ": " + context_;
  return Error(code_, message_, std::move(context));
}

void check_failed(std::string_view condition, std::string_view message, const char* file,
                  int line) {
  // The only output of the library that no caller asked for: the process is about to abort, and
  // without the text the cause would be lost.
  std::fprintf(stderr, "sluice: %s:%d: check failed: %.*s %.*s\n", file, line,
               static_cast<int>(condition.size()), condition.data(),
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace sluice
