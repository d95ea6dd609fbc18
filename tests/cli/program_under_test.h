// Runs the program `sluice` as a user would and collects its output.
//
// Used by the e2e tests. Thread rule: main thread of the test.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sluice::cli {

struct Outcome {
  int exit_code = -1;  // 128 + signal when one ended it
  std::string out;
  std::string err;
  std::chrono::steady_clock::time_point interrupted_at;  // when SIGINT was sent
};

struct Invocation {
  std::vector<std::string> words;
  std::string program = SLUICE_PROGRAM;  // or a shell that runs it
  std::string input;                     // standard input
  std::string output_path;               // standard output goes there instead of into Outcome::out
  std::vector<std::string> environment;  // "NAME=value", over the test's own
  std::function<void()> in_child;        // before the program starts: limits and alarms
  // Called whenever there is new output; true sends SIGINT, once.
  std::function<bool(const Outcome& so_far)> interrupt_when;
  // Sends SIGINT once, this long after the program has installed its handler. Counted from the
  // start, it could end a slow program before its first line.
  std::optional<std::chrono::milliseconds> interrupt_after;
};

// Whether the process has a handler for SIGINT, according to /proc.
inline bool handles_interrupt(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("SigCgt:", 0) != 0) continue;
    return (std::stoull(line.substr(7), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
  }
  return false;
}

// Decides when an invocation's signal is due; true once.
class InterruptClock {
 public:
  explicit InterruptClock(const Invocation& invocation) : invocation_(invocation) {}

  bool is_due(pid_t child, const Outcome& so_far) {
    if (is_sent_) return false;
    is_sent_ = (invocation_.interrupt_when && invocation_.interrupt_when(so_far)) ||
               (invocation_.interrupt_after && is_time(child));
    return is_sent_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool is_time(pid_t child) {
    const Clock::time_point now = Clock::now();
    const bool is_set = due_ != Clock::time_point::max();
    if (!is_set && handles_interrupt(child)) due_ = now + *invocation_.interrupt_after;
    return now >= due_;
  }

  const Invocation& invocation_;
  Clock::time_point due_ = Clock::time_point::max();
  bool is_sent_ = false;
};

// Reads both pipes until they close; sends the signal when it is due.
inline void collect(const Invocation& invocation, pid_t child, int out_fd, int err_fd,
                    Outcome* outcome) {
  pollfd fds[2] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}};
  std::string* texts[2] = {&outcome->out, &outcome->err};
  InterruptClock clock(invocation);
  int num_open = 2;
  while (num_open > 0) {
    poll(fds, 2, 20);
    for (int i = 0; i < 2; ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = read(fds[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        texts[i]->append(buffer, static_cast<size_t>(n));
      } else {
        close(fds[i].fd);
        fds[i].fd = -1;
        --num_open;
      }
    }
    if (clock.is_due(child, *outcome)) {
      outcome->interrupted_at = std::chrono::steady_clock::now();
      kill(child, SIGINT);
    }
  }
}

inline Outcome run_sluice(const Invocation& invocation) {
  int in[2], out[2], err[2];
  if (pipe(in) != 0 || pipe(out) != 0 || pipe(err) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    if (!invocation.output_path.empty()) dup2(open(invocation.output_path.c_str(), O_WRONLY), 1);
    for (const int fd : {in[0], in[1], out[0], out[1], err[0], err[1]}) close(fd);
    std::vector<std::string> words = {invocation.program};
    words.insert(words.end(), invocation.words.begin(), invocation.words.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (const std::string& setting : invocation.environment) {
      putenv(strdup(setting.c_str()));
    }
    if (invocation.in_child) invocation.in_child();
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  std::signal(SIGPIPE, SIG_IGN);  // a program that ends early does not read all its input
  const ssize_t written = write(in[1], invocation.input.data(), invocation.input.size());
  (void)written;
  close(in[1]);
  Outcome outcome;
  collect(invocation, child, out[0], err[0], &outcome);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

inline Outcome run_sluice(const std::vector<std::string>& words) {
  return run_sluice(Invocation{.words = words});
}

}  // namespace sluice::cli
