// Output of the commands: results to standard output, everything else to standard error.
//
// Colours and a progress line that overwrites itself appear on terminals only; a log file gets a
// plain line every few seconds. Thread rule: main thread only, but for
// messages, which any thread may write.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "cli/progress_text.h"

namespace sluice::cli {

// True if the stream is a terminal, not a file or a pipe.
bool is_terminal(FILE* stream);
// True for a terminal unless NO_COLOR is set or TERM is dumb.
bool wants_colour(FILE* stream);

// write_result writes to standard output; flush_results makes sure that the text has arrived. What
// an error leaves unwritten is lost.
// Errors: kIo if it cannot be written, for example a full disk behind a redirection; ClosedPipe.
void write_result(std::string_view text);
void flush_results();

// Thrown if nobody reads standard output any more, as behind `| head -1`: no error, but what is
// left to do is for nothing. main returns kExitClosedPipe without a message.
struct ClosedPipe {};

// One line to standard error, above the progress line if one is shown. A line that cannot be
// written is counted: whoever reads standard error may end before the program.
void write_message(std::string_view text);
// The same for the log of a server, which must not wait for who reads it (bounded_lines.h).
void write_log_line(std::string_view text);
// Of both.
int64_t num_lost_messages();

// A line with the progress of a long task: "  34 % loading needle, 5 s left". Shows nothing for the
// first two seconds. On a terminal it overwrites itself and fits the terminal's current width
// (progress_text.h); elsewhere, and with TERM=dumb or unset, it prints a plain line every ten
// seconds.
//
// A thread of its own redraws it while the task is busy within one call, so a task that has no
// share to report needs no `update`. Of nested tasks the newest is shown.
class ProgressLine {
 public:
  // Starts the ticker. `task` is the text after the share.
  explicit ProgressLine(std::string task);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `share` is the part done, 0 to 1, never falling; `detail` follows the task's name.
  void update(double share, std::string_view detail = {});
  // The same for a task that counts tokens; the line also shows their rate.
  void update_tokens(int64_t num_done, int64_t num_total, std::string_view detail);
  // Starts another task on the same line; its share begins at 0. No effect if it has this name
  // already.
  void set_task(std::string_view task);
  // Removes the line, for other output. A later update shows it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  void show_soon();
  void show(Clock::time_point now);
  void hide();
  void run_ticker();
  double seconds_since_start() const;
  friend void write_message(std::string_view text);
  friend void write_log_line(std::string_view text);

  // All members are protected by a mutex of terminal.cc.
  ProgressState state_;
  Pace share_pace_;
  Pace token_pace_;
  Clock::time_point start_;
  Clock::time_point next_;  // no draw before
  bool is_active_ = true;   // may be shown: not cleared since the last update
  bool is_shown_ = false;   // on the terminal now
  bool is_over_ = false;    // ends the ticker
  std::thread ticker_;
};

}  // namespace sluice::cli
