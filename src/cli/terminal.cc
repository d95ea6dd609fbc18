// Writes results and messages; draws progress lines from the main thread and their tickers.
#include "cli/terminal.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/bounded_lines.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

using std::chrono::milliseconds;

constexpr auto kQuietTime = milliseconds(2000);        // short tasks show no line
constexpr auto kTerminalInterval = milliseconds(100);  // between two draws
constexpr auto kTickInterval = milliseconds(500);      // of a task without updates
constexpr auto kLogInterval = milliseconds(10000);     // between two lines of a log file
constexpr int kDefaultColumns = 80;                    // if the terminal does not report its width
constexpr int kLogColumns = 200;                       // of a log file: everything fits
constexpr size_t kMaxUnwrittenBytes = 64 << 10;        // of results
constexpr const char* kClearLine = "\r\033[K";

// Protects all ProgressLines, the variables below and standard error. The main thread and the
// tickers take it.
std::mutex progress_mutex;
std::condition_variable ticker_wakes;
ProgressLine* shown_line = nullptr;    // on the terminal now
std::vector<ProgressLine*> all_lines;  // the newest last

// Results that are not written yet. Not a buffer of stdio: that one loses its text if a signal
// interrupts a write, as the first Ctrl-C does.
std::string unwritten_results;

// True for a terminal that can move its cursor, so that a line can be overwritten.
bool can_rewrite(FILE* stream) {
  const char* term = std::getenv("TERM");
  return is_terminal(stream) && term != nullptr && *term != '\0' && std::strcmp(term, "dumb") != 0;
}

// Read for each draw, since the window may be resized.
int terminal_columns(FILE* stream) {
  winsize size = {};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultColumns;
}

bool locale_is_utf8() {
  return is_utf8_locale(std::getenv("LC_ALL"), std::getenv("LC_CTYPE"), std::getenv("LANG"));
}

std::atomic<int64_t> lost_messages = 0;
BoundedLines log_lines(STDERR_FILENO);

[[noreturn]] void refuse_write() {
  if (errno == EPIPE) throw ClosedPipe();
  fail(ErrorCode::kIo, "standard output cannot be written: {}", std::strerror(errno));
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
  unwritten_results += text;
  // By lines on a terminal, where messages appear between them.
  const bool ends_line = text.find('\n') != text.npos && is_terminal(stdout);
  if (ends_line || unwritten_results.size() >= kMaxUnwrittenBytes) flush_results();
}

void flush_results() {
  const std::string text = std::exchange(unwritten_results, {});
  for (std::string_view left = text; !left.empty();) {
    const ssize_t num_written = write(STDOUT_FILENO, left.data(), left.size());
    if (num_written < 0 && errno != EINTR) refuse_write();
    left.remove_prefix(static_cast<size_t>(std::max<ssize_t>(num_written, 0)));
  }
}

void write_message(std::string_view text) {
  const std::lock_guard lock(progress_mutex);
  if (shown_line != nullptr) shown_line->hide();
  if (std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data()) < 0) {
    ++lost_messages;
  }
}

// Under the same lock, so that it meets neither a progress line nor a message; a thread that waits
// for the lock waits no longer than the line may.
void write_log_line(std::string_view text) {
  const std::lock_guard lock(progress_mutex);
  if (shown_line != nullptr) shown_line->hide();
  log_lines.write(text);
}

int64_t num_lost_messages() { return lost_messages + log_lines.num_lost(); }

ProgressLine::ProgressLine(std::string task) : start_(Clock::now()), next_(start_ + kQuietTime) {
  state_.task = std::move(task);
  {
    const std::lock_guard lock(progress_mutex);
    if (shown_line != nullptr) shown_line->hide();
    all_lines.push_back(this);
  }
  // The ticker blocks all signals: SIGINT must reach the main thread and interrupt its wait.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    ticker_ = std::thread([this] { run_ticker(); });
  } catch (const std::system_error&) {
    // Without a ticker the line is drawn by `update` alone.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ProgressLine::~ProgressLine() {
  {
    const std::lock_guard lock(progress_mutex);
    hide();
    std::erase(all_lines, this);
    // All tickers wait on one condition variable; the others check their own flag and wait again.
    is_over_ = true;
    ticker_wakes.notify_all();
  }
  if (ticker_.joinable()) ticker_.join();
}

void ProgressLine::update(double share, std::string_view detail) {
  const std::lock_guard lock(progress_mutex);
  state_.share = share;
  state_.detail = detail;
  share_pace_.see(share, seconds_since_start());
  show_soon();
}

void ProgressLine::update_tokens(int64_t num_done, int64_t num_total, std::string_view detail) {
  const std::lock_guard lock(progress_mutex);
  const auto done = static_cast<double>(num_done);
  state_.share = done / static_cast<double>(std::max<int64_t>(1, num_total));
  state_.detail = detail;
  share_pace_.see(*state_.share, seconds_since_start());
  token_pace_.see(done, seconds_since_start());
  show_soon();
}

void ProgressLine::set_task(std::string_view task) {
  const std::lock_guard lock(progress_mutex);
  if (state_.task == task) return;
  // Rates of the old task mean nothing for the new one.
  state_ = {};
  state_.task = task;
  share_pace_ = token_pace_ = {};
}

void ProgressLine::clear() {
  const std::lock_guard lock(progress_mutex);
  hide();
  is_active_ = false;
}

double ProgressLine::seconds_since_start() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

// Draws if enough time has passed. The caller holds the mutex, here and in show and hide.
void ProgressLine::show_soon() {
  is_active_ = true;
  const Clock::time_point now = Clock::now();
  if (now >= next_) show(now);
}

void ProgressLine::show(Clock::time_point now) {
  // An inner task hides the outer one until it ends.
  if (all_lines.back() != this) return;
  state_.seconds = seconds_since_start();
  state_.tokens_per_second = token_pace_.per_second();
  // Remaining share over the rate of the last seconds; empty until that is known.
  state_.seconds_left.reset();
  const double pace = share_pace_.per_second();
  if (state_.share && pace > 0) state_.seconds_left = (1 - *state_.share) / pace;
  // A terminal overwrites its line; a log gets a new one, without a bar.
  if (can_rewrite(stderr)) {
    const std::string text = progress_text(terminal_columns(stderr), state_,
                                           {.has_bar = true, .is_utf8 = locale_is_utf8()});
    std::fprintf(stderr, "%s%s", kClearLine, text.c_str());
    is_shown_ = true;
    shown_line = this;
    next_ = now + kTerminalInterval;
  } else {
    std::fprintf(stderr, "%s\n", progress_text(kLogColumns, state_, {.has_bar = false}).c_str());
    next_ = now + kLogInterval;
  }
  std::fflush(stderr);
}

void ProgressLine::hide() {
  if (!is_shown_) return;
  std::fputs(kClearLine, stderr);
  std::fflush(stderr);
  is_shown_ = false;
  shown_line = nullptr;
}

void ProgressLine::run_ticker() {
  std::unique_lock lock(progress_mutex);
  // Draws while the main thread is busy in one call; ends when the destructor sets is_over_.
  while (!ticker_wakes.wait_for(lock, kTickInterval, [this] { return is_over_; })) {
    const Clock::time_point now = Clock::now();
    if (is_active_ && now >= next_) show(now);
  }
}

}  // namespace sluice::cli
