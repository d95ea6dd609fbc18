// Runs `sluice serve` beside a test and speaks to it over its socket.
//
// Used by the e2e tests of the server. Thread rule: main thread of the test.
#pragma once

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/temp_dir.h"
#include "server/raw_client.h"

namespace sluice::cli {

// How long a slow machine, or a sanitizer, may take for what should take a moment.
inline constexpr std::chrono::seconds kPatience{60};

class ServerUnderTest {
 public:
  // `words` follow the program's name. Returns when the server serves, has ended, or is overdue.
  // `in_child` is called before the program starts, for limits.
  explicit ServerUnderTest(const std::vector<std::string>& words,
                           const std::function<void()>& in_child = {}) {
    child_ = fork();
    if (child_ == 0 && in_child) in_child();
    if (child_ == 0) run(words);
    wait_for([this] { return has_logged("\nserving ") || has_ended(); });
    EXPECT_TRUE(has_logged("\nserving ")) << log();
  }
  ~ServerUnderTest() {
    if (has_ended()) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  ServerUnderTest(const ServerUnderTest&) = delete;
  ServerUnderTest& operator=(const ServerUnderTest&) = delete;

  uint16_t port() const {
    const std::string text = log();
    const std::string front = "listening on http://127.0.0.1:";
    const size_t at = text.find(front);
    if (at == std::string::npos) return 0;
    return static_cast<uint16_t>(std::stoi(text.substr(at + front.size())));
  }
  // What it has written to standard error.
  std::string log() const { return slurp(directory_.path() / "log"); }
  bool has_logged(const std::string& text) const { return http::has(log(), text); }

  void send_signal(int signal) const { kill(child_, signal); }
  // 128 + signal if one ended it; -1 if it is overdue.
  int wait_exit() {
    wait_for([this] { return has_ended(); });
    if (!is_over_) return -1;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }
  bool has_ended() {
    if (!is_over_) is_over_ = waitpid(child_, &status_, WNOHANG) == child_;
    return is_over_;
  }

  template <typename Condition>
  static bool wait_for(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

 private:
  [[noreturn]] void run(std::vector<std::string> words) const {
    const std::string path = (directory_.path() / "log").string();
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDERR_FILENO);
    words.insert(words.begin(), SLUICE_PROGRAM);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }

  TempDir directory_;
  pid_t child_ = -1;
  bool is_over_ = false;
  int status_ = 0;
};

inline std::string post_text(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace sluice::cli
