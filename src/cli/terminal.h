// What the commands write: results to standard output, everything else to standard error.
//
// Knows whether a terminal reads along: only then are there colours and a progress line that
// rewrites itself; a log file gets a plain line now and then. Thread rule: main thread only.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

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

// A line that says how far a long task is: "  34 % loading weights". Silent for the first two
// seconds. On a terminal it rewrites itself ten times a second; elsewhere a line every ten seconds.
class ProgressLine {
 public:
  explicit ProgressLine(std::string task);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `share` from 0 to 1; `detail` is put behind the task's name.
  void update(double share, std::string_view detail = {});
  // Takes the line away, for other output. A later update shows it again.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string task_;
  Clock::time_point start_;
  Clock::time_point next_;
  bool shown_ = false;
};

}  // namespace sluice::cli
