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

  void read_more();
  void on_read(const Error& error, size_t size);
  void on_end_of_input();
  void consume();
  void note_head();
  bool begin_body();
  bool send_continue();
  void dispatch();
  void call_handler();
  void refuse(const Fault& fault);
  void report_refusal(int status) const;

  void pump();
  void compose(Outbox::Batch batch);
  void compose_stream(const Outbox::Batch& batch);
  void write_some();
  void on_written(const Error& error, size_t size);
  void end_exchange();

  void arm();
  TimePoint deadline() const;
  void on_time();
  bool peer_has_closed();

  void linger();
  void lose(Gone reason);
  void close();

  const std::shared_ptr<ConnectionSet> set_;  // first: the socket needs its io_context
  Socket socket_;
  boost::asio::steady_timer timer_;
  TimePoint armed_ = TimePoint::max();
  RequestReader reader_;
  std::array<char, 4096> piece_{};
  std::string in_;
  bool reading_ = false;
  bool closed_ = false;
  bool stopping_ = false;
  bool lingering_ = false;
  TimePoint linger_end_;

  // Of the current answer.
  std::shared_ptr<Outbox> outbox_;
  Router::Match match_{};
  std::string_view route_;  // the pattern of the path's route; empty: none, or not known
  std::string request_id_;
  FaultBody fault_body_ = fault_body;  // of the route, once it is known
  std::vector<Field> more_fields_;     // ServerOptions::answer_fields
  bool head_only_ = false;             // HEAD: the client expects no body
  bool chunked_ = false;
  bool streaming_ = false;
  bool close_after_ = false;
  bool finished_ = false;  // all of the answer is in out_
  bool cut_ = false;
  StreamStart start_;
  std::string out_;
  size_t written_ = 0;  // of out_
  bool writing_ = false;
  TimePoint last_taken_;
  TimePoint answer_end_ = TimePoint::max();  // of Limits::answer_time
};

}  // namespace sluice::http
