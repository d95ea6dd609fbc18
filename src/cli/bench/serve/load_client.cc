// Connections live as long as their handlers or a LoadRequest. All of them share the io_context,
// which the client's thread runs until none is open.
#include "cli/bench/serve/load_client.h"

#include <array>
#include <charconv>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <pthread.h>

#include "cli/interrupt.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using SystemError = boost::system::error_code;

constexpr std::string_view kHeadEnd = "\r\n\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";
constexpr std::string_view kLengthField = "Content-Length: ";
constexpr std::chrono::milliseconds kInterruptPoll{100};

// A generic endpoint: one kind of socket for both.
Protocol::endpoint endpoint_of(const ServerAddress& server) {
  if (!server.unix_path.empty()) return asio::local::stream_protocol::endpoint(server.unix_path);
  return asio::ip::tcp::endpoint(asio::ip::make_address(server.address), server.port);
}

}  // namespace

// One request and its answer. Handlers run on the client's thread; members that wait or read are
// called on others.
class LoadConnection : public std::enable_shared_from_this<LoadConnection> {
 public:
  // Those that are open; touched on the client's thread alone.
  using Set = std::unordered_set<LoadConnection*>;

  LoadConnection(std::shared_ptr<asio::io_context> io, std::shared_ptr<Set> open, std::string text)
      : io_(std::move(io)), open_(std::move(open)), socket_(*io_), request_(std::move(text)) {
    answer_.sent = LoadClock::now();
  }

  // Connections are opened on the client's thread, so that the caller goes on at once.
  void start(const Protocol::endpoint& server) {
    asio::post(*io_, [self = shared_from_this(), server] {
      self->open_->insert(self.get());
      self->socket_.async_connect(server, [self](const SystemError& error) {
        error ? self->end(error.message()) : self->write();
      });
    });
  }

  // Wakes up now and then for Ctrl-C, whose handler cannot notify.
  void wait() {
    const auto has_ended = [this] { return has_ended_; };
    std::unique_lock lock(mutex_);
    while (!has_ended() && !changed_.wait_for(lock, kInterruptPoll, has_ended)) {
      if (interrupted()) throw Interrupted();
    }
  }

  // On the client's thread.
  void close() { end({}); }

  ReceivedAnswer received() const {
    const std::lock_guard lock(mutex_);
    return answer_;
  }

 private:
  // Writing goes on beside reading, so that an early refusal of a long body is seen.
  void write() {
    asio::async_write(socket_, asio::buffer(request_),
                      [self = shared_from_this()](const SystemError&, size_t) {
                        std::string().swap(self->request_);
                      });
    read();
  }

  // Until the answer is complete or the server closes. A whole answer closes the connection, too:
  // every request of a load is a client of its own.
  void read() {
    socket_.async_read_some(asio::buffer(piece_),
                            [self = shared_from_this()](const SystemError& error, size_t size) {
                              if (error) return self->end(error.message());
                              self->take(size) ? self->end({}) : self->read();
                            });
  }

  // Whether the answer is complete.
  bool take(size_t size) {
    const std::lock_guard lock(mutex_);
    answer_.bytes.append(piece_.data(), size);
    answer_.pieces.push_back({LoadClock::now(), answer_.bytes.size()});
    if (body_at_ == 0 && !find_body()) return false;
    answer_.is_whole = body_bytes_ ? answer_.bytes.size() >= body_at_ + *body_bytes_
                                   : answer_.bytes.ends_with(kLastChunk);
    return answer_.is_whole;
  }

  // An answer has a length or chunks; nothing else is answered to HTTP/1.1.
  bool find_body() {
    const size_t head_end = answer_.bytes.find(kHeadEnd);
    if (head_end == std::string::npos) return false;
    body_at_ = head_end + kHeadEnd.size();
    const size_t field = answer_.bytes.find(kLengthField);
    if (field >= head_end) return true;
    size_t length = 0;
    std::from_chars(answer_.bytes.data() + field + kLengthField.size(),
                    answer_.bytes.data() + head_end, length);
    body_bytes_ = length;
    return true;
  }

  // Once: the client may end at the moment at which the answer ends.
  void end(std::string fault) {
    SystemError ignored;
    socket_.close(ignored);
    open_->erase(this);
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_ended_, true)) return;
    answer_.fault = std::move(fault);
    changed_.notify_all();
  }

  const std::shared_ptr<asio::io_context> io_;  // first: the socket needs it
  const std::shared_ptr<Set> open_;
  asio::basic_stream_socket<Protocol> socket_;
  std::string request_;
  std::array<char, 4096> piece_{};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Below: under the mutex.
  ReceivedAnswer answer_;
  size_t body_at_ = 0;  // 0: the head is not complete
  std::optional<size_t> body_bytes_;
  bool has_ended_ = false;
};

double seconds_between(LoadTime from, LoadTime to) {
  return std::chrono::duration<double>(to - from).count();
}

ServerAddress parse_server_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  ServerAddress server;
  std::string_view rest = url;
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t colon = rest.rfind(':');
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const char* const end = rest.data() + rest.size();
  const char* const port = colon == rest.npos ? end : rest.data() + colon + 1;
  const auto parsed = std::from_chars(port, end, server.port);
  server.address = host == "localhost" ? "127.0.0.1" : std::string(host);
  SystemError error;
  asio::ip::make_address(server.address, error);
  if (!url.starts_with(kScheme) || error || parsed.ec != std::errc() || parsed.ptr != end) {
    fail(ErrorCode::kInvalidArgument,
         "--url: '{}' is not http://ADDRESS:PORT; give one such as http://127.0.0.1:8000", url);
  }
  return server;
}

LoadRequest::LoadRequest(std::shared_ptr<LoadConnection> connection)
    : connection_(std::move(connection)) {}

void LoadRequest::wait() const { connection_->wait(); }

ReceivedAnswer LoadRequest::received() const { return connection_->received(); }

// Owns the thread, and what all connections share.
class LoadClient::Impl {
 public:
  explicit Impl(const ServerAddress& server)
      : server_(server), endpoint_(endpoint_of(server)), guard_(io_->get_executor()) {
    thread_ = std::thread([io = io_] { io->run(); });
  }

  // Closed connections end their handlers, and with the last of them the thread.
  ~Impl() {
    asio::post(*io_, [open = open_] {
      const LoadConnection::Set all = *open;
      for (LoadConnection* connection : all) connection->close();
    });
    guard_.reset();
    thread_.join();
  }

  LoadRequest send(std::string_view line, std::string_view fields, std::string_view body) {
    std::string text = fmt::format("{} HTTP/1.1\r\nHost: localhost\r\n{}{}\r\n{}", line,
                                   key_field(), fields, body);
    auto connection = std::make_shared<LoadConnection>(io_, open_, std::move(text));
    connection->start(endpoint_);
    return LoadRequest(std::move(connection));
  }

  double cpu_seconds() {
    clockid_t clock{};
    timespec time{};
    if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0) return 0;
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

 private:
  std::string key_field() const {
    return server_.key.empty() ? "" : "Authorization: Bearer " + server_.key + "\r\n";
  }

  const ServerAddress server_;
  const Protocol::endpoint endpoint_;
  // Run by one thread, so that no connection needs a strand.
  const std::shared_ptr<asio::io_context> io_ = std::make_shared<asio::io_context>();
  const std::shared_ptr<LoadConnection::Set> open_ = std::make_shared<LoadConnection::Set>();
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  std::thread thread_;
};

LoadClient::LoadClient(const ServerAddress& address) : impl_(std::make_unique<Impl>(address)) {}

LoadClient::~LoadClient() = default;

LoadRequest LoadClient::get(std::string_view path) {
  return impl_->send(fmt::format("GET {}", path), {}, {});
}

LoadRequest LoadClient::post(std::string_view path, std::string_view json) {
  return impl_->send(
      fmt::format("POST {}", path),
      fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", json.size()), json);
}

double LoadClient::cpu_seconds() const { return impl_->cpu_seconds(); }

}  // namespace sluice::cli
