// Connection: one client's socket, from its first request to the close.
//
// Private to connection.cc and http_server.cc, which alone include Boost.Asio.
// Thread rule: all members run on the connection's strand, but wake() and the ends that
// ConnectionSet posts, which any thread may call.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include "server/http/connection_set.h"
#include "server/http/outbox.h"
#include "server/http/request_reader.h"

namespace sluice::http {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol>;

  Connection(Socket socket, std::shared_ptr<ConnectionSet> set);
  ~Connection();

  // Begins to read. Called once, on any thread.
  void start();
  // Asks for the end: after the current answer, or now. Any thread.
  void post_stop(bool now);

 private:
  using Error = boost::system::error_code;

  //  reading ──> answering ──> lingering ──> closed
  //     ^            │
  //     └── the next request; every state may also close at once
  enum class State {
    kReading,    // a request, or before the next one
    kAnswering,  // from a complete request, or a refused one, until all of its answer has left
    kLingering,  // everything is sent, and input is dropped
    kClosed,     // what is still pending has no effect any more
  };

  // A request and its answer. end_exchange drops it whole.
  struct Transaction {
    // As soon as the head of the request is known.
    Router::Match match{};
    std::string_view route;  // the pattern of the path's route; empty: none, or not known
    std::string request_id;
    FaultBody fault_body = http::fault_body;  // of the route, once it is known
    std::vector<Field> more_fields;           // ServerOptions::answer_fields
    bool head_only = false;                   // HEAD: the client expects no body

    std::shared_ptr<Outbox> outbox;  // while the state is kAnswering
    bool chunked = true;             // HTTP/1.0 has no chunks: the close ends a stream
    bool streaming = false;
    bool close_after = false;
    bool finished = false;     // all of the answer is in out_
    bool cut = false;          // it has no end, which the client must see: no last chunk is sent
    bool input_ended = false;  // the client sends no more
    bool writing = false;      // a write is pending
    bool probe_next = false;   // after the write that is pending
    StreamStart start;
    TimePoint last_taken;                     // when the client last took bytes, or was sent some
    TimePoint answer_end = TimePoint::max();  // of Limits::answer_time
  };

  // Requests. A read is always pending, also while an answer is made, since its end is how a client
  // that left is noticed; it stops only when a client has sent too much ahead, or has ended its
  // input.
  void read_more();
  void on_read(const Error& error, size_t size);
  void on_end_of_input();
  void probe();
  void watch_peer();
  // Feeds the reader with what has come, until a request is complete and its handler is called.
  void consume();
  void note_head();
  bool begin_body();
  bool send_continue();
  // Gives the request and an Exchange to the route's handler, which may answer at once or later.
  void call_handler();
  // Answers without a handler. The body of such a request is not read.
  void refuse(const Fault& fault);
  // Tells ServerOptions::on_refusal, which counts and logs what no handler sees.
  void report_refusal(int status);

  // Answers. `pump` runs when the outbox has something and when a write has ended: at most one
  // write is pending, and meanwhile the outbox merges.
  void pump();
  // Renders a batch into `out_`.
  void compose(Outbox::Batch batch);
  void compose_stream(const Outbox::Batch& batch);
  void write_some();
  void on_written(const Error& error, size_t size);
  // The answer has left: closes, or begins with the next request, which may have come already.
  void end_exchange();

  // Time. One timer serves all limits: it is set to the nearest, and looks again when it fires.
  void arm();
  // When the nearest limit of this moment ends: of the request, the answer, the client or a ping.
  TimePoint deadline() const;
  void on_time();
  void send_ping();
  // What poll says of the other end, whether it is known to be gone, and whether this has ended the
  // connection.
  short peer_events();
  bool peer_is_gone();
  bool look_at_peer();

  // The end. `linger` sends everything and reads on for a while: a close with unread input would
  // reset the connection, and the client would lose the answer.
  void linger();
  // The client gets no more; its handler is told.
  void lose(Gone reason);
  void close();

  const std::shared_ptr<ConnectionSet> set_;  // first: the socket needs its io_context
  Socket socket_;
  boost::asio::steady_timer timer_;
  TimePoint armed_ = TimePoint::max();
  RequestReader reader_;
  std::array<char, 4096> piece_{};
  std::string in_;  // input that no request has taken yet
  State state_ = State::kReading;
  bool reading_ = false;   // a read is pending
  bool stopping_ = false;  // the current answer is the last one
  TimePoint linger_end_;
  Transaction current_;
  // Of the current answer. Outside of it, since its memory serves the next one.
  std::string out_;
  size_t written_ = 0;  // of out_
};

}  // namespace sluice::http
