// The functions of libzmq by their names, and calls of them that throw.
#include "events/zmq_library.h"

#include <array>
#include <cerrno>
#include <utility>

#include <dlfcn.h>

#include "core/error.h"

namespace sluice {
namespace {

// Numbers of zmq.h, which is not needed to build: the ABI of libzmq.so.5 has not changed since
// 2013.
constexpr int kMore = 13;          // ZMQ_RCVMORE
constexpr int kLastEndpoint = 32;  // ZMQ_LAST_ENDPOINT
constexpr int kDoNotWait = 1;
constexpr int kSendMore = 2;
constexpr short kPollIn = 1;

// zmq_msg_t and zmq_pollitem_t. Only the library reads what is in a message.
struct alignas(void*) Message {
  std::array<unsigned char, 64> bytes;
};
struct PollItem {
  void* socket;
  int fd;
  short events;
  short revents;
};

// The functions that are used, named without "zmq_".
struct Library {
  void* (*ctx_new)();
  int (*ctx_term)(void*);
  void* (*socket)(void*, int);
  int (*close)(void*);
  int (*setsockopt)(void*, int, const void*, size_t);
  int (*getsockopt)(void*, int, void*, size_t*);
  int (*bind)(void*, const char*);
  int (*connect)(void*, const char*);
  int (*send)(void*, const void*, size_t, int);
  int (*msg_init)(Message*);
  int (*msg_recv)(Message*, void*, int);
  void* (*msg_data)(Message*);
  size_t (*msg_size)(const Message*);
  int (*msg_close)(Message*);
  int (*poll)(PollItem*, int, long);
  int (*error_number)();
  const char* (*error_text)(int);
};

// A library that calls itself libzmq.so.5 and lacks a function is an error of the installation, as
// a missing one is.
template <typename Function>
void find(void* handle, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(handle, name));
  if (function == nullptr) {
    fail(ErrorCode::kUnsupported, "libzmq.so.5 has no {}; install another libzmq5", name);
  }
}

// Tried once, and never closed: its threads may still run when the program ends.
void* open_library() {
  static void* const handle = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
  return handle;
}

Library load_library() {
  void* const handle = open_library();
  if (handle == nullptr) {
    fail(ErrorCode::kUnsupported,
         "kv_events needs ZeroMQ, and libzmq.so.5 cannot be opened; install the package libzmq5, "
         "or leave kv_events out");
  }
  Library zmq;
  find(handle, "zmq_ctx_new", zmq.ctx_new);
  find(handle, "zmq_ctx_term", zmq.ctx_term);
  find(handle, "zmq_socket", zmq.socket);
  find(handle, "zmq_close", zmq.close);
  find(handle, "zmq_setsockopt", zmq.setsockopt);
  find(handle, "zmq_getsockopt", zmq.getsockopt);
  find(handle, "zmq_bind", zmq.bind);
  find(handle, "zmq_connect", zmq.connect);
  find(handle, "zmq_send", zmq.send);
  find(handle, "zmq_msg_init", zmq.msg_init);
  find(handle, "zmq_msg_recv", zmq.msg_recv);
  find(handle, "zmq_msg_data", zmq.msg_data);
  find(handle, "zmq_msg_size", zmq.msg_size);
  find(handle, "zmq_msg_close", zmq.msg_close);
  find(handle, "zmq_poll", zmq.poll);
  find(handle, "zmq_errno", zmq.error_number);
  find(handle, "zmq_strerror", zmq.error_text);
  return zmq;
}

// Errors come again with each call, since a static that throws is not made.
const Library& library() {
  static const Library zmq = load_library();
  return zmq;
}

// Whoever calls knows which option the endpoint came from, and adds it.
[[noreturn]] void fail_call(const std::string& what) {
  fail(ErrorCode::kIo, "ZeroMQ cannot {}: {}", what,
       library().error_text(library().error_number()));
}

// Calls again what a signal has interrupted.
template <typename Call>
int retried(const Call& call) {
  int result = call();
  while (result < 0 && library().error_number() == EINTR) result = call();
  return result;
}

}  // namespace

bool has_zmq() { return open_library() != nullptr; }

ZmqContext::ZmqContext() : context_(library().ctx_new()) {
  if (context_ == nullptr) fail_call("start");
}

ZmqContext::~ZmqContext() {
  retried([this] { return library().ctx_term(context_); });
}

ZmqSocket::ZmqSocket(ZmqContext& context, ZmqKind kind)
    : socket_(library().socket(context.context_, static_cast<int>(kind))) {
  if (socket_ == nullptr) fail_call("make a socket");
}

ZmqSocket::~ZmqSocket() { library().close(socket_); }

void ZmqSocket::set(ZmqOption option, int value) {
  if (library().setsockopt(socket_, static_cast<int>(option), &value, sizeof value) != 0) {
    fail_call("set an option");
  }
}

void ZmqSocket::subscribe(std::string_view topic) {
  if (library().setsockopt(socket_, static_cast<int>(ZmqOption::kSubscribe), topic.data(),
                           topic.size()) != 0) {
    fail_call("subscribe");
  }
}

void ZmqSocket::bind(const std::string& endpoint) {
  if (library().bind(socket_, endpoint.c_str()) != 0) fail_call("bind '" + endpoint + "'");
}

void ZmqSocket::connect(const std::string& endpoint) {
  if (library().connect(socket_, endpoint.c_str()) != 0) fail_call("connect '" + endpoint + "'");
}

// With its final zero.
std::string ZmqSocket::endpoint() const {
  std::array<char, 256> text;
  size_t size = text.size();
  if (library().getsockopt(socket_, kLastEndpoint, text.data(), &size) != 0) {
    fail_call("tell an endpoint");
  }
  return std::string(text.data(), size > 0 ? size - 1 : 0);
}

// A frame that is accepted obliges to send the rest: no kind of socket used here takes a part
// alone.
void ZmqSocket::send(std::span<const std::string_view> frames) {
  for (size_t i = 0; i < frames.size(); ++i) {
    const int flags = kDoNotWait | (i + 1 < frames.size() ? kSendMore : 0);
    const auto send_frame = [&] {
      return library().send(socket_, frames[i].data(), frames[i].size(), flags);
    };
    if (retried(send_frame) < 0) fail_call("send");
  }
}

// The frames of a message come together: after the first none is waited for.
std::vector<std::string> ZmqSocket::receive() {
  const Library& zmq = library();
  std::vector<std::string> frames;
  for (int more = 1; more != 0;) {
    Message message;
    zmq.msg_init(&message);
    if (retried([&] { return zmq.msg_recv(&message, socket_, kDoNotWait); }) < 0) {
      zmq.msg_close(&message);
      if (zmq.error_number() == EAGAIN) return {};
      fail_call("receive");
    }
    frames.emplace_back(static_cast<const char*>(zmq.msg_data(&message)), zmq.msg_size(&message));
    zmq.msg_close(&message);
    size_t size = sizeof more;
    if (zmq.getsockopt(socket_, kMore, &more, &size) != 0) fail_call("receive");
  }
  return frames;
}

// zmq_poll takes its own sockets and descriptors of the system in one call, so that one thread can
// wait for both.
ZmqReady ZmqReady::wait(const ZmqSocket* socket, int fd, int64_t timeout_ms) {
  std::array<PollItem, 2> items = {};
  int count = 0;
  if (socket != nullptr) items[static_cast<size_t>(count++)] = {socket->socket_, 0, kPollIn, 0};
  if (fd >= 0) items[static_cast<size_t>(count++)] = {nullptr, fd, kPollIn, 0};
  if (retried([&] { return library().poll(items.data(), count, timeout_ms); }) < 0) {
    fail_call("wait");
  }
  ZmqReady ready;
  for (int i = 0; i < count; ++i) {
    const PollItem& item = items[static_cast<size_t>(i)];
    if ((item.revents & kPollIn) == 0) continue;
    (item.socket != nullptr ? ready.has_message : ready.can_read) = true;
  }
  return ready;
}

}  // namespace sluice
