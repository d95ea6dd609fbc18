// Text from standard input and from files that the command line names.
//
// Used by every command that reads text. Standard input is read in blocks, up to the size limit of
// files, and Ctrl-C interrupts the wait. Unreadable input is a usage error, kInvalidArgument (exit
// status 2), like a misspelt option. Thread rule: main thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "sluice/error.h"

namespace sluice::cli {

// Of cli/options/options.h.
struct RunCommand;
struct TextsCommand;

// Reads a stream to its end.
// Errors: kInvalidArgument, naming standard input, for a read error (such as a directory) and for
// more than `max_bytes`; kDoesNotFit if memory ends before. Interrupted after Ctrl-C.
std::string read_stream(int fd, uint64_t max_bytes = kMaxTextFileBytes);

// Standard input as a prompt, without the final newline that `echo` and editors add.
std::string read_standard_input();

// Returns read(). Turns its kIo into a kInvalidArgument that names `option`, which named the file.
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

// Checks that a file that `option` names can be written, before the work whose result it gets.
// Errors: kInvalidArgument naming both.
void check_writable(std::string_view option, const std::filesystem::path& path);

// The prompts of `run`: the texts of all files, joined, precede each prompt. "-" as a prompt means
// standard input, and so does no prompt and no file. Errors: kInvalidArgument if standard input is
// then a terminal.
std::vector<std::string> gather_prompts(const RunCommand& command);

// The texts of `tokenize` and `score`: one per word and one per file; standard input as above.
std::vector<std::string> gather_texts(const TextsCommand& command);

// Reads a stream line by line.
class LineReader {
 public:
  enum class Result { kLine, kEnd, kInterrupted };  // kInterrupted: Ctrl-C

  explicit LineReader(int fd) : fd_(fd) {}

  // Reads the next line, without its newline; the last line needs none. Returns kInterrupted if
  // Ctrl-C came first; the part of the line typed so far is dropped.
  // Errors: as read_stream.
  Result next(std::string* line);

 private:
  int fd_;
  bool at_end_ = false;
  std::string pending_;  // read but not yet returned
};

}  // namespace sluice::cli
