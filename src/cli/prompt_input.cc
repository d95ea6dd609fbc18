// Blocking reads that Ctrl-C interrupts, and the texts that commands collect with them.
#include "cli/prompt_input.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include <poll.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "cli/options/options.h"
#include "cli/terminal.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

constexpr int kPollMilliseconds = 100;  // the longest that Ctrl-C can stay unnoticed

[[noreturn]] void refuse_read(int error) {
  fail(ErrorCode::kInvalidArgument,
       "standard input cannot be read: {}; pipe a text into it or name a file with --file",
       std::strerror(error));
}

// Reads the next bytes of `fd` into `block`; 0 at the end, empty if Ctrl-C came first. Waits by
// poll with a timeout: a signal between the check of the flag and a blocking read would be missed.
std::optional<size_t> read_block(int fd, std::span<char> block) {
  for (;;) {
    if (interrupted()) return std::nullopt;
    pollfd wait{fd, POLLIN, 0};
    const int ready = poll(&wait, 1, kPollMilliseconds);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    if (ready < 0 || (wait.revents & POLLNVAL) != 0) refuse_read(ready < 0 ? errno : EBADF);
    const ssize_t count = read(fd, block.data(), block.size());
    if (count >= 0) return static_cast<size_t>(count);
    if (errno != EINTR && errno != EAGAIN) refuse_read(errno);
  }
}

// A terminal would wait for input without a word; a prompt was probably forgotten.
[[noreturn]] void refuse_terminal() {
  fail(ErrorCode::kInvalidArgument,
       "no prompt; give one as a word, with --file FILE or on standard input");
}

}  // namespace

std::string read_stream(int fd, uint64_t max_bytes) {
  std::array<char, 65536> block;
  std::string text;
  for (;;) {
    const std::optional<size_t> count = read_block(fd, block);
    if (!count) throw Interrupted();
    if (*count == 0) return text;
    // Checked before the append: an endless stream must not exhaust memory.
    if (text.size() + *count > max_bytes) {
      fail(ErrorCode::kInvalidArgument,
           "standard input has more than the limit of {} bytes; is it the right text?", max_bytes);
    }
    try {
      text.append(block.data(), *count);
    } catch (const std::bad_alloc&) {
      const size_t num_read = text.size();
      text = std::string();  // frees memory for the error message
      fail(ErrorCode::kDoesNotFit,
           "memory is used up after {} MiB of standard input; give a shorter text", num_read >> 20);
    }
  }
}

// Removes one newline only: further ones are the user's.
std::string read_standard_input() {
  std::string text = read_stream(STDIN_FILENO);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string read_user_file(std::string_view option, const std::filesystem::path& path) {
  return as_user_file(option, [&] { return read_file(path); });
}

void check_writable(std::string_view option, const std::filesystem::path& path) {
  as_user_file(option, [&] {
    const AtomicFile probe(path);  // removed again, since there is no commit()
    return true;
  });
}

std::vector<std::string> gather_prompts(const RunCommand& command) {
  std::string before;
  for (const std::string& file : command.files) {
    if (!before.empty()) before += "\n\n";
    before += read_user_file("--file", file);
    // Files are separated by one empty line, whatever newlines they end with.
    while (before.ends_with('\n')) before.pop_back();
  }
  std::vector<std::string> prompts = command.prompts;
  if (prompts.empty() && command.files.empty()) {
    if (is_terminal(stdin)) refuse_terminal();
    prompts.emplace_back("-");
  }
  if (prompts.empty()) return {before};
  for (std::string& prompt : prompts) {
    if (prompt == "-") prompt = read_standard_input();
    if (!before.empty()) prompt = before + "\n\n" + prompt;
  }
  return prompts;
}

std::vector<std::string> gather_texts(const TextsCommand& command) {
  std::vector<std::string> texts;
  if (command.texts.empty() && command.files.empty()) {
    if (is_terminal(stdin)) refuse_terminal();
    return {read_standard_input()};
  }
  for (const std::string& text : command.texts) {
    texts.push_back(text == "-" ? read_standard_input() : text);
  }
  for (const std::string& file : command.files) texts.push_back(read_user_file("--file", file));
  return texts;
}

LineReader::Result LineReader::next(std::string* line) {
  std::array<char, 4096> block;
  for (;;) {
    const size_t newline = pending_.find('\n');
    if (newline != std::string::npos) {
      *line = pending_.substr(0, newline);
      pending_.erase(0, newline + 1);
      return Result::kLine;
    }
    // The last line may lack a newline.
    if (at_end_) {
      if (pending_.empty()) return Result::kEnd;
      *line = std::exchange(pending_, {});
      return Result::kLine;
    }
    if (pending_.size() > kMaxTextFileBytes) {
      fail(ErrorCode::kInvalidArgument, "a line of standard input has more than {} bytes",
           kMaxTextFileBytes);
    }
    const std::optional<size_t> count = read_block(fd_, block);
    if (!count) {
      pending_.clear();
      return Result::kInterrupted;
    }
    at_end_ = *count == 0;
    pending_.append(block.data(), *count);
  }
}

}  // namespace sluice::cli
