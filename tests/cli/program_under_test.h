// Runs the program `sluice` as a user would and collects what it said.
//
// Used by the e2e tests. Thread rule: main thread of the test.
#pragma once

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
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
};

struct Invocation {
  std::vector<std::string> words;
  std::string input;                     // standard input
  std::string output_path;               // standard output goes there instead of into Outcome::out
  std::vector<std::string> environment;  // "NAME=value", over the test's own
  // Asked whenever there is new output; true sends SIGINT, once.
  std::function<bool(const Outcome& so_far)> interrupt_when;
};

// Reads both pipes until they close; sends the signal when it is asked for.
inline void collect(const Invocation& invocation, pid_t child, int out_fd, int err_fd,
                    Outcome* outcome) {
  pollfd fds[2] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}};
  std::string* texts[2] = {&outcome->out, &outcome->err};
  bool sent = false;
  int num_open = 2;
  while (num_open > 0) {
    poll(fds, 2, 50);
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
    if (!sent && invocation.interrupt_when && invocation.interrupt_when(*outcome)) {
      kill(child, SIGINT);
      sent = true;
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
    std::vector<std::string> words = {SLUICE_PROGRAM};
    words.insert(words.end(), invocation.words.begin(), invocation.words.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    for (const std::string& setting : invocation.environment) {
      putenv(strdup(setting.c_str()));
    }
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
