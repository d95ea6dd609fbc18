// Terminal output.
#include "cli/terminal.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "core/error.h"

namespace sluice::cli {
namespace {

using std::chrono::milliseconds;

constexpr auto kQuietTime = milliseconds(2000);
constexpr auto kTerminalInterval = milliseconds(100);
constexpr auto kLogInterval = milliseconds(10000);
constexpr int kBarCells = 24;
constexpr const char* kClearLine = "\r\033[K";

[[noreturn]] void refuse_write() {
  fail(ErrorCode::kIo, "standard output cannot be written: {}", std::strerror(errno));
}

std::string bar(double share) {
  const int full = static_cast<int>(share * kBarCells + 0.5);
  std::string text;
  for (int i = 0; i < kBarCells; ++i) text += i < full ? "━" : "┄";
  return text;
}

}  // namespace

bool is_terminal(FILE* stream) { return isatty(fileno(stream)) == 1; }

bool wants_colour(FILE* stream) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  if (no_colour && *no_colour) return false;
  return is_terminal(stream) && !(term && std::strcmp(term, "dumb") == 0);
}

void write_result(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) refuse_write();
}

void flush_results() {
  if (std::fflush(stdout) != 0) refuse_write();
}

void write_message(std::string_view text) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

ProgressLine::ProgressLine(std::string task)
    : task_(std::move(task)), start_(Clock::now()), next_(start_ + kQuietTime) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::update(double share, std::string_view detail) {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  share = std::clamp(share, 0.0, 1.0);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string text = fmt::format("{:3.0f} % {}{}{}, {:.0f} s", share * 100, task_,
                                       detail.empty() ? "" : ": ", detail, seconds);
  if (is_terminal(stderr)) {
    std::fprintf(stderr, "%s%s %s", kClearLine, bar(share).c_str(), text.c_str());
    shown_ = true;
    next_ = now + kTerminalInterval;
  } else {
    write_message(text);
    next_ = now + kLogInterval;
  }
  std::fflush(stderr);
}

void ProgressLine::clear() {
  if (!shown_) return;
  std::fputs(kClearLine, stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace sluice::cli
