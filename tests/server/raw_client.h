// A client that sends and receives bytes as they are, with a time limit on every wait.
//
// Used by the tests of the HTTP server, most of whose requests no HTTP library would send.
// Thread rule: one thread for each client.
#pragma once

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace sluice::http {

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    open(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  explicit RawClient(const std::string& path) : fd_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    open(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  ~RawClient() { close_now(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False when the server has closed or takes nothing more within the limit.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // What has come once `text` has come behind what was returned before; all, at the end.
  std::string read_until(std::string_view text) {
    size_t at = in_.find(text);
    while (at == std::string::npos && receive()) at = in_.find(text);
    const size_t end = at == std::string::npos ? in_.size() : at + text.size();
    std::string found = in_.substr(0, end);
    in_.erase(0, end);
    return found;
  }
  // Everything up to the server's close.
  std::string read_all() {
    while (receive()) {
    }
    return std::exchange(in_, {});
  }
  // One answer with Content-Length.
  std::string read_answer() {
    std::string answer = read_until("\r\n\r\n");
    const size_t at = answer.find("Content-Length: ");
    if (at == std::string::npos) return answer;
    const size_t length = std::stoul(answer.substr(at + 16));
    while (in_.size() < length && receive()) {
    }
    answer += in_.substr(0, length);
    in_.erase(0, length);
    return answer;
  }
  void read_byte() {
    char byte = 0;
    (void)!recv(fd_, &byte, 1, MSG_DONTWAIT);
  }
  bool at_end() const { return at_end_; }

  void half_close() { shutdown(fd_, SHUT_WR); }
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close_now();
  }
  void close_now() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  void open(const sockaddr* address, socklen_t size) {
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    EXPECT_EQ(connect(fd_, address, size), 0) << std::strerror(errno);
  }
  bool receive() {
    std::array<char, 16384> piece;
    const ssize_t size = recv(fd_, piece.data(), piece.size(), 0);
    at_end_ = size == 0 || (size < 0 && errno == ECONNRESET);
    if (size <= 0) return false;
    in_.append(piece.data(), static_cast<size_t>(size));
    return true;
  }

  int fd_;
  std::string in_;
  bool at_end_ = false;
};

// The status of an answer's first line; 0 for no answer.
inline int status_of(const std::string& answer) {
  return answer.starts_with("HTTP/1.1 ") ? std::stoi(answer.substr(9, 3)) : 0;
}

inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace sluice::http
