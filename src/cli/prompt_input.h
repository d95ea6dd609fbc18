// Text from standard input and from files that the command line names.
//
// Used by every command that reads text. Standard input is read in blocks, up to the size that a
// file may have, and Ctrl-C is heard while it is waited for. What cannot be read is the caller's to
// mend and so kInvalidArgument (status 2), as a misspelt option is. Thread rule: main thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options/options.h"
#include "io/file.h"
#include "sluice/error.h"

namespace sluice::cli {

// All of a stream, as text of at most `max_bytes`.
// Errors: kInvalidArgument naming standard input for a read error (a directory) and for more than
// `max_bytes`; kDoesNotFit where memory ends before that. Interrupted after Ctrl-C.
std::string read_stream(int fd, uint64_t max_bytes = kMaxTextFileBytes);

// Standard input as a prompt: without the newline that `echo` and editors put at the end.
std::string read_standard_input();

// What `read` returns; its kIo becomes a kInvalidArgument that names `option`, which named the
// file.
template <typename Read>
auto as_user_file(std::string_view option, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) throw;
    throw Error(ErrorCode::kInvalidArgument, error.message(), std::string(option));
  }
}

// The text of a file that `option` names. Errors: kInvalidArgument naming both.
std::string read_user_file(std::string_view option, const std::filesystem::path& path);

// The prompts of `run` as text: the files, joined, in front of each; standard input where "-"
// stands or where nothing else was given. Errors: kInvalidArgument when that is a terminal.
std::vector<std::string> gather_prompts(const RunCommand& command);

// The texts of `tokenize` and `score`, each word and each file one; standard input as above.
std::vector<std::string> gather_texts(const TextsCommand& command);

// Lines of a stream, as they are typed.
class LineReader {
 public:
  enum class Result { kLine, kEnd, kInterrupted };

  explicit LineReader(int fd) : fd_(fd) {}

  // Takes the next line, without its newline; the last one needs none. kInterrupted when Ctrl-C
  // came first; what was typed of the line until then is gone.
  // Errors: as read_stream.
  Result next(std::string* line);

 private:
  int fd_;
  bool at_end_ = false;
  std::string pending_;  // read and not yet taken
};

}  // namespace sluice::cli
