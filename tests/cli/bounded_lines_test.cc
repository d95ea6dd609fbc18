// Lines to a pipe whose reader stands still, comes back, and ends.
#include "cli/bounded_lines.h"

#include <chrono>
#include <csignal>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

class LogPipe : public ::testing::Test {
 protected:
  LogPipe() {
    EXPECT_EQ(pipe(ends_), 0);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~LogPipe() override {
    close_reader();
    close(ends_[1]);
  }
  void close_reader() {
    if (ends_[0] >= 0) close(ends_[0]);
    ends_[0] = -1;
  }
  // All that is in the pipe.
  std::string read_all() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(ends_[0], buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  // Until one is lost.
  static void fill(BoundedLines& lines, const std::string& line) {
    for (int i = 0; i < 100'000 && lines.num_lost() == 0; ++i) lines.write(line);
    ASSERT_EQ(lines.num_lost(), 1);
  }

  int ends_[2] = {-1, -1};
};

// The first line without room waits for it, those after it do not.
TEST_F(LogPipe, AReaderThatStandsStillCostsLinesAndNoTime) {
  BoundedLines lines(ends_[1]);
  fill(lines, std::string(99, 'a'));
  const auto begin = Clock::now();
  for (int i = 0; i < 1000; ++i) lines.write("lost");
  // Each of them would take kMaxWait.
  EXPECT_LT(Clock::now() - begin, 100 * BoundedLines::kMaxWait);
  EXPECT_EQ(lines.num_lost(), 1001);
  const std::string before = read_all();
  EXPECT_EQ(before.find("lost"), before.npos);
  lines.write("again");
  EXPECT_EQ(read_all(), "again\n");
  EXPECT_EQ(lines.num_lost(), 1001);
}

// A line is longer than the room: what is left of it does not run into the next one.
TEST_F(LogPipe, ALineThatIsCutIsEnded) {
  BoundedLines lines(ends_[1]);
  fill(lines, std::string(50'000, 'a'));
  EXPECT_EQ(read_all().back(), 'a');
  lines.write("next");
  lines.write("last");
  EXPECT_EQ(read_all(), "\nnext\nlast\n");
}

// There is no room to wait for: each write fails at once.
TEST_F(LogPipe, LinesForAReaderThatHasEndedAreLost) {
  std::signal(SIGPIPE, SIG_IGN);
  BoundedLines lines(ends_[1]);
  close_reader();
  for (int i = 0; i < 10; ++i) lines.write("not read");
  EXPECT_EQ(lines.num_lost(), 10);
}

}  // namespace
}  // namespace sluice::cli
