#include "server/http/http_server.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <limits>
#include <thread>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/error.h"
#include "server/http/connection.h"
#include "server/http/connection_set.h"

namespace sluice::http {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using SystemError = boost::system::error_code;
using namespace std::chrono_literals;

// Pause after an accept that failed, for example without descriptors left.
constexpr Milliseconds kAcceptPause{100};

// Linux refuses larger values of TCP_KEEPIDLE and TCP_KEEPINTVL.
constexpr int64_t kMaxKeepAliveSeconds = 32'767;

// A zero ends the path in the address of a socket.
constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// A peer that is gone without a word takes no byte either, so it gets the time of a client that
// stalls, and a probe's time more: Linux also ends connections whose peer is there and takes
// nothing, and those are for the server to end, which has a name for it. Linux looks at
// TCP_USER_TIMEOUT when a keep-alive probe is due, so a peer that is owed nothing is found up to
// one probe later: a sixth of the time, at least 1 s. What a kind of socket does not have fails
// without effect.
void set_socket_options(int fd, Milliseconds client_stall) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  const auto part_s = [client_stall](int divisor) {
    return static_cast<int>(
        std::clamp<int64_t>(client_stall / divisor / 1s, 1, kMaxKeepAliveSeconds));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, part_s(2));
  set(IPPROTO_TCP, TCP_KEEPINTVL, part_s(6));
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  const Milliseconds limit = client_stall + std::max<Milliseconds>(client_stall / 6, 1s);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(std::min<int64_t>(limit.count(), std::numeric_limits<int>::max())));
}

asio::local::stream_protocol::endpoint unix_endpoint(const std::string& path) {
  if (path.size() > kMaxUnixPathBytes) {
    fail(ErrorCode::kInvalidArgument,
         "the path of the unix domain socket \"{}\" has {} bytes, and a socket's path has at most "
         "{}; give a shorter one",
         path, path.size(), kMaxUnixPathBytes);
  }
  return asio::local::stream_protocol::endpoint(path);
}

// Device and number of what has this name; zeros if nothing has.
using FileId = std::pair<dev_t, ino_t>;

FileId file_of(const std::string& path) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return {};
  return {file.st_dev, file.st_ino};
}

// Whether `path` is a socket on which nobody listens. Without waiting: a listener whose queue is
// full gives another error. REQUIRES: a path of at most kMaxUnixPathBytes.
bool is_left_behind(const std::string& path) {
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0 || !S_ISSOCK(file.st_mode)) return false;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int result = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const bool is_refused = result != 0 && errno == ECONNREFUSED;
  close(fd);
  return is_refused;
}

Protocol::endpoint endpoint_of(const ServerOptions& options) {
  if (!options.unix_path.empty()) return unix_endpoint(options.unix_path);
  SystemError error;
  const auto address = asio::ip::make_address(options.address, error);
  if (error) {
    fail(ErrorCode::kInvalidArgument, "\"{}\" is not an IP address; give one such as 127.0.0.1",
         options.address);
  }
  return asio::ip::tcp::endpoint(address, options.port);
}

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(ServerOptions options)
      : set_(std::make_shared<ConnectionSet>(std::move(options))),
        strand_(asio::make_strand(set_->io)),
        acceptor_(strand_),
        pause_(strand_),
        guard_(set_->io.get_executor()) {
    listen();
    accept();
    for (int i = 0; i < set_->options.num_threads; ++i) {
      threads_.emplace_back([this] { run(); });
    }
  }

  uint16_t port() const { return port_; }

  size_t num_connections() const {
    const std::lock_guard lock(set_->mutex);
    return set_->open.size();
  }

  // No new connection, then no new request, then, after the limit, no connection. Open ones are
  // told by posts to their strands, so none is touched by two threads.
  void stop(Milliseconds limit) {
    if (threads_.empty()) return;
    asio::post(strand_, [this] {
      stopped_ = true;
      SystemError ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      closed_.set_value();
    });
    closed_.get_future().wait();
    for (const auto& connection : set_->all()) connection->post_stop(false);
    wait_for_none(limit);
    for (const auto& connection : set_->all()) connection->post_stop(true);
    guard_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    const std::string& path = set_->options.unix_path;
    if (!path.empty() && file_of(path) == unix_file_) unlink(path.c_str());
  }

 private:
  // In the constructor: an address that is taken is an error of the start.
  void listen() {
    const Protocol::endpoint endpoint = endpoint_of(set_->options);
    const auto check = [this](const SystemError& error) {
      if (!error) return;
      const ServerOptions& options = set_->options;
      const std::string place = options.unix_path.empty()
                                    ? fmt::format("{}:{}", options.address, options.port)
                                    : options.unix_path;
      fail(ErrorCode::kIo, "cannot listen on {}: {}; give another address or port", place,
           error.message());
    };
    SystemError error;
    check(acceptor_.open(endpoint.protocol(), error));
    if (set_->options.unix_path.empty()) {
      check(acceptor_.set_option(asio::socket_base::reuse_address(true), error));
    }
    // A server that was killed could not remove its socket, and bind would refuse the path for
    // ever. Of two servers that start at once there, one may lose its path to the other.
    const std::string& path = set_->options.unix_path;
    if (!path.empty() && is_left_behind(path)) unlink(path.c_str());
    check(acceptor_.bind(endpoint, error));
    check(acceptor_.listen(asio::socket_base::max_listen_connections, error));
    if (!path.empty()) {
      unix_file_ = file_of(path);
      return;
    }
    asio::ip::tcp::endpoint bound;
    const Protocol::endpoint local = acceptor_.local_endpoint(error);
    check(error);
    bound.resize(local.size());
    std::copy_n(reinterpret_cast<const char*>(local.data()), local.size(),
                reinterpret_cast<char*>(bound.data()));
    port_ = bound.port();
  }

  // A handler that throws, such as without memory, ends its connection: nothing of it is pending
  // then but its timer. All others go on.
  void run() {
    for (;;) {
      try {
        set_->io.run();
        return;
      } catch (...) {
        continue;
      }
    }
  }

  // Always one accept is pending. After a failed one it waits, since it would fail again at once.
  void accept() {
    acceptor_.async_accept(asio::make_strand(set_->io),
                           [this](const SystemError& error, Connection::Socket socket) {
                             if (stopped_) return;
                             if (!error) {
                               accept();  // first: what admit throws must not end it
                               return admit(std::move(socket));
                             }
                             pause_.expires_after(kAcceptPause);
                             pause_.async_wait([this](const SystemError& cancelled) {
                               if (!cancelled && !stopped_) accept();
                             });
                           });
  }

  // Above the limit the socket is closed as it goes out of scope, without an answer.
  void admit(Connection::Socket socket) {
    set_socket_options(socket.native_handle(), set_->options.limits.client_stall);
    std::shared_ptr<Connection> connection;
    {
      const std::lock_guard lock(set_->mutex);
      if (set_->open.size() >= set_->options.limits.num_connections) return;
      connection = std::make_shared<Connection>(std::move(socket), set_);
      set_->open[connection.get()] = connection;
    }
    connection->start();
  }

  void wait_for_none(Milliseconds limit) {
    std::unique_lock lock(set_->mutex);
    const TimePoint end = Clock::now() + limit;
    while (!set_->open.empty()) {
      if (set_->changed.wait_until(lock, end) == std::cv_status::timeout) return;
    }
  }

  // Shared with the connections, whose last members may be destroyed after this object.
  const std::shared_ptr<ConnectionSet> set_;
  asio::strand<asio::io_context::executor_type> strand_;
  asio::basic_socket_acceptor<Protocol> acceptor_;
  asio::steady_timer pause_;
  // Keeps the threads while no connection is open.
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  std::vector<std::thread> threads_;
  std::promise<void> closed_;
  bool stopped_ = false;  // on strand_
  uint16_t port_ = 0;
  FileId unix_file_ = {};  // of the socket: another file may have its name at the end
};

HttpServer::HttpServer(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

HttpServer::~HttpServer() { impl_->stop(Milliseconds(0)); }

uint16_t HttpServer::port() const { return impl_->port(); }

size_t HttpServer::num_connections() const { return impl_->num_connections(); }

void HttpServer::stop(Milliseconds limit) { impl_->stop(limit); }

}  // namespace sluice::http
