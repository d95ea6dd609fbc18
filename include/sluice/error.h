// Error: the one exception type that Sluice throws.
//
// Part of the public API. A fault from outside (a bad file, an impossible option, a device that
// fails) is an `Error` whose text names the thing, the value and the remedy.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace sluice {

// The class of an error, by which a caller can act. The command line maps these to exit codes.
enum class ErrorCode {
  kInvalidArgument,  // an option, a prompt or a parameter of a call
  kModel,            // a model directory, its configuration, weights or tokenizer
  kUnsupported,      // well-formed, but a thing Sluice does not do
  kDoesNotFit,       // memory, context length or another budget
  kIo,               // a file that cannot be read or written
  kDevice,           // a device, stream or asynchronous operation failed
};

std::string_view error_code_name(ErrorCode code);

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

}  // namespace sluice
