// Lines for a reader that may stand still: a pager, a terminal after Ctrl-S, a log collector.
//
// A line waits for room a moment at most; without it the line is lost. The lines after it do not
// wait until there is room again. So who writes is never held up for long, at the cost of lines.
// Another process that writes to the same pipe may take the room between question and write; then
// the write waits as any other. A pipe of Linux has 64 KiB, some 400 lines of a server.
//
// Used by terminal.cc. Thread rule: one thread at a time, but num_lost.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace sluice::cli {

class BoundedLines {
 public:
  static constexpr std::chrono::milliseconds kMaxWait{100};

  explicit BoundedLines(int file) : file_(file) {}

  // Appends the end of the line. One that is cut in its middle is ended before the next one, so
  // that whoever reads lines finds the next one whole.
  void write(std::string_view line);
  int64_t num_lost() const { return num_lost_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool has_room_until(Clock::time_point deadline) const;

  const int file_;
  bool stands_still_ = false;  // the last line was lost
  bool is_cut_ = false;        // a part of it was written
  std::atomic<int64_t> num_lost_ = 0;
};

}  // namespace sluice::cli
