// Runs the program `sluice` in a terminal of a given width and records what it draws there.
//
// Used by the e2e tests. Thread rule: main thread of the test.
#pragma once

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sluice::cli {

struct TerminalRun {
  std::string drawn;  // every byte that reached the terminal
  int exit_code = -1;
};

inline void set_terminal_columns(int terminal, int columns) {
  winsize size = {};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  ioctl(terminal, TIOCSWINSZ, &size);
}

// Calls `on_output(terminal, child, drawn)` whenever something new was drawn, until the program
// ends. `environment`: "NAME=value", over the test's own.
using OnDrawn = std::function<void(int terminal, pid_t child, const std::string& drawn)>;
inline TerminalRun run_in_terminal(std::vector<std::string> words, int columns,
                                   const std::vector<std::string>& environment,
                                   const OnDrawn& on_drawn) {
  winsize size = {};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    words.insert(words.begin(), SLUICE_PROGRAM);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (const std::string& setting : environment) putenv(strdup(setting.c_str()));
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  TerminalRun run;
  char buffer[4096];
  // Linux ends the reading with EIO when the program has closed its side.
  for (ssize_t n = 0; (n = read(terminal, buffer, sizeof buffer)) > 0;) {
    run.drawn.append(buffer, static_cast<size_t>(n));
    on_drawn(terminal, child, run.drawn);
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return run;
}

// Emulates the part of a terminal that progress lines use: characters, newlines, carriage returns
// and "\033[K". Counts lines that are longer than the terminal is wide and so wrap.
class LineEmulator {
 public:
  explicit LineEmulator(int columns) : columns_(columns) {}

  void feed(const std::string& bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto c = static_cast<unsigned char>(bytes[i]);
      if (c == '\r' || c == '\n') {
        column_ = 0;
      } else if (c == '\033') {
        i = bytes.find_first_of("ABCDHJKm", i);
        if (i == std::string::npos) return;
      } else if ((c & 0xC0) != 0x80 && ++column_ == columns_) {
        ++num_wrapped_;  // the cursor is at the edge: the character goes to the next row
      }
    }
  }
  int num_wrapped() const { return num_wrapped_; }

 private:
  int columns_;
  int column_ = 0;
  int num_wrapped_ = 0;
};

}  // namespace sluice::cli
