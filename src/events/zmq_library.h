// ZeroMQ's C library, opened when the first socket is made: nothing links it, and a machine without
// it runs everything else.
//
// Used by event_publisher, and by tests as a subscriber. Thread rule: a context may be used from
// any thread, a socket from one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Whether the library is there.
bool has_zmq();

// Numbers of zmq.h; its ABI fixes them.
enum class ZmqKind : int { kPub = 1, kSub = 2, kReq = 3, kDealer = 5, kRouter = 6 };
enum class ZmqOption : int { kSubscribe = 6, kLinger = 17, kSendLimit = 23, kReceiveLimit = 24 };

class ZmqContext {
 public:
  // Errors: kUnsupported if the library is missing, with the name of its package.
  ZmqContext();
  ~ZmqContext();  // waits for the sockets' unsent messages, as long as their kLinger
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;

 private:
  friend class ZmqSocket;
  void* context_ = nullptr;
};

class ZmqSocket {
 public:
  // Errors: kIo.
  ZmqSocket(ZmqContext& context, ZmqKind kind);
  ~ZmqSocket();
  ZmqSocket(const ZmqSocket&) = delete;
  ZmqSocket& operator=(const ZmqSocket&) = delete;

  // Errors of all: kIo with the library's own text.
  void set(ZmqOption option, int value);
  void subscribe(std::string_view topic);
  void bind(const std::string& endpoint);
  void connect(const std::string& endpoint);
  // What it is bound to: with the port, if the system chose it.
  std::string endpoint() const;

  // A message of these frames. Does not wait: kinds that drop, drop.
  void send(std::span<const std::string_view> frames);
  // The frames of the next message; none if there is none yet.
  std::vector<std::string> receive();

 private:
  friend struct ZmqReady;
  void* socket_ = nullptr;
};

// What a thread waits for: a message of a socket, or a file descriptor that can be read.
struct ZmqReady {
  bool has_message = false;
  bool can_read = false;

  // Waits for one of the two, for at most this long; -1: for ever. Null, and -1: not for this one.
  static ZmqReady wait(const ZmqSocket* socket, int fd, int64_t timeout_ms);
};

}  // namespace sluice
