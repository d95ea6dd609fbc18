// What the commands write: results to standard output, everything else to standard error.
//
// Knows whether a terminal reads along: only then are there colours and a progress line that
// rewrites itself; a log file gets a plain line now and then. Thread rule: main thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "cli/progress_text.h"

namespace sluice::cli {

bool is_terminal(FILE* stream);
// A terminal, and neither NO_COLOR nor TERM=dumb asks for plain text.
bool wants_colour(FILE* stream);

// Writes to standard output and, with flush_results, makes sure that it arrived.
// Errors: kIo when it cannot be written (a full disk behind a redirection).
void write_result(std::string_view text);
void flush_results();

// One line to standard error, above the progress line if one is shown.
void write_message(std::string_view text);

// A line that says how far a long task is: "  34 % loading needle, 5 s left". Silent for the first
// two seconds. On a terminal it rewrites itself, fitted to the width that the terminal has at that
// moment (progress_text.h); elsewhere, and with TERM=dumb or none, a plain line every ten seconds.
//
// A thread of its own shows it while the task is busy within one call, so a task that can say
// nothing of itself needs no `update`. Of tasks within tasks the newest is shown.
class ProgressLine {
 public:
  explicit ProgressLine(std::string task);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `share` from 0 to 1, never falling; `detail` follows the task's name.
  void update(double share, std::string_view detail = {});
  // The same for a task whose work is counted in tokens: with their rate.
  void update_tokens(int64_t num_done, int64_t num_total, std::string_view detail);
  // From now on another task, whose share begins at 0 again.
  void set_task(std::string_view task);
  // Takes the line away, for other output. A later update shows it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void show_soon();
  void show(Clock::time_point now);
  void hide();
  void run_ticker();
  double seconds_since_start() const;
  friend void write_message(std::string_view text);

  // All of it is guarded by a mutex of terminal.cc.
  ProgressState state_;
  Pace share_pace_;
  Pace token_pace_;
  Clock::time_point start_;
  Clock::time_point next_;
  bool is_active_ = true;  // may be shown: not cleared since the last update
  bool is_shown_ = false;  // stands on the terminal
  bool is_over_ = false;
  std::thread ticker_;
};

}  // namespace sluice::cli
