#include "server/http/connection.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <variant>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <poll.h>
#include <sys/socket.h>

#include "server/http/answer_text.h"
#include "server/http/router.h"

namespace sluice::http {
namespace {

namespace asio = boost::asio;

// Events are rendered in batches of this size; what is left merges meanwhile.
constexpr size_t kBatchBytes = 256 << 10;
// How often a client whose input is not read is asked whether it has closed.
constexpr Milliseconds kPollTime{1'000};

}  // namespace

Connection::Connection(Socket socket, std::shared_ptr<ConnectionSet> set)
    : set_(std::move(set)),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      reader_(set_->options.limits, Clock::now()) {}

Connection::~Connection() {
  const std::lock_guard lock(set_->mutex);
  set_->open.erase(this);
  set_->changed.notify_all();
}

void Connection::start() {
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->read_more();
    self->arm();
  });
}

void Connection::post_stop(bool now) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), now] {
    self->stopping_ = true;
    if (now) return self->lose(Gone::kStopped);
    if (self->state_ == State::kReading) self->close();
  });
}

void Connection::read_more() {
  const Limits& limits = set_->options.limits;
  const bool full = state_ == State::kAnswering && in_.size() >= limits.kept_bytes;
  if (state_ == State::kClosed || reading_ || full) return;
  reading_ = true;
  socket_.async_read_some(
      asio::buffer(piece_),
      [self = shared_from_this()](const Error& error, size_t size) { self->on_read(error, size); });
}

void Connection::on_read(const Error& error, size_t size) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (error == asio::error::eof) return on_end_of_input();
  if (error) return lose(Gone::kDisconnected);
  if (state_ != State::kLingering) in_.append(piece_.data(), size);
  consume();
  read_more();
  arm();
}

// A client that has closed its sending side may still read, or may be gone: both look alike until
// it is sent something.
void Connection::on_end_of_input() {
  if (state_ != State::kAnswering) return close();
  current_.input_ended = true;
  probe();
  arm();
}

// Sends what every client skips. The machine of one that is gone answers with a reset, by which
// peer_is_gone knows. HTTP/1.0 has nothing to skip before an answer, so there the client counts as
// gone.
void Connection::probe() {
  const bool has_events = current_.streaming && !current_.head_only;
  if (peer_is_gone() || (!has_events && !current_.chunked)) return lose(Gone::kDisconnected);
  watch_peer();
  // What is being written may have left before the client did.
  current_.probe_next = current_.writing;
  if (current_.finished || current_.writing) return;
  if (has_events) return send_ping();
  if (!current_.streaming && !send_continue()) lose(Gone::kDisconnected);
}

void Connection::watch_peer() {
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](const Error&) {
    if (self->state_ == State::kAnswering && self->peer_is_gone()) {
      self->lose(Gone::kDisconnected);
    }
  });
}

void Connection::consume() {
  while (state_ == State::kReading) {
    switch (reader_.feed(in_, Clock::now())) {
      case RequestReader::Step::kMore:
        return;
      case RequestReader::Step::kFault:
        note_head();
        return refuse(reader_.fault());
      case RequestReader::Step::kHead:
        if (!begin_body()) return;
        break;
      case RequestReader::Step::kComplete:
        call_handler();
        return;
    }
  }
}

// What an error of this request is answered with, as far as it is known.
void Connection::note_head() {
  const Request& request = reader_.head().request;
  current_.head_only = request.method == "HEAD";
  current_.request_id = request.id;
  current_.fault_body = set_->options.router.faults_of(request.path);
}

// Whether the request may go on; otherwise it has been answered, and its body is not read.
bool Connection::begin_body() {
  const Head& head = reader_.head();
  note_head();
  if (set_->options.answer_fields) current_.more_fields = set_->options.answer_fields(head.request);
  const Router& router = set_->options.router;
  auto found = router.find(head.request.method, head.request.path);
  std::optional<Fault> fault;
  if (auto* unknown = std::get_if<Fault>(&found)) {
    fault = std::move(*unknown);
    current_.route = router.pattern_of(head.request.path);
  } else {
    current_.match = std::move(std::get<Router::Match>(found));
    current_.route = current_.match.pattern;
    if (set_->options.gate) fault = set_->options.gate(head.request);
  }
  if (fault) {
    fault->close |= head.framing != Framing::kNone || !head.keep_alive;
    refuse(*fault);
    return false;
  }
  if (head.expects_continue && in_.empty()) return send_continue();
  return true;
}

// Asio's synchronous write would wait for room. A client that has left none gets no "100 Continue":
// it may send its body without.
bool Connection::send_continue() {
  constexpr std::string_view kText = "HTTP/1.1 100 Continue\r\n\r\n";
  const ssize_t sent =
      ::send(socket_.native_handle(), kText.data(), kText.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  const bool whole = sent <= 0 || sent == static_cast<ssize_t>(kText.size());
  if (!whole) close();
  return whole;
}

void Connection::refuse(const Fault& fault) {
  if (current_.request_id.empty()) current_.request_id = make_request_id();
  report_refusal(fault.status);
  state_ = State::kAnswering;
  current_.outbox = std::make_shared<Outbox>(0, [] {});
  current_.close_after = stopping_ || fault.close;
  current_.outbox->answer(fault_answer(fault, current_.fault_body, current_.request_id));
  pump();
}

void Connection::report_refusal(int status) {
  const auto& report = set_->options.on_refusal;
  if (!report) return;
  const Request& request = reader_.head().request;
  report({.status = status,
          .route = current_.route,
          .method = request.method,
          .path = request.path,
          .id = current_.request_id,
          .arrived = reader_.arrived()});
}

void Connection::call_handler() {
  Head& head = reader_.head();
  Request request = std::move(head.request);
  request.captures = std::move(current_.match.captures);
  current_.close_after = stopping_ || !head.keep_alive;
  current_.chunked = request.minor_version == 1;
  const Milliseconds answer_time = set_->options.limits.answer_time;
  if (answer_time > Milliseconds(0)) current_.answer_end = Clock::now() + answer_time;
  state_ = State::kAnswering;
  current_.outbox =
      std::make_shared<Outbox>(set_->options.limits.client_buffer_bytes, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        asio::post(self->socket_.get_executor(), [weak] {
          if (const auto connection = weak.lock()) connection->pump();
        });
      });
  auto exchange = std::make_shared<Exchange>(current_.outbox, request.id, current_.fault_body);
  try {
    (*current_.match.handler)(std::move(request), exchange);
  } catch (...) {
    // The text is not for the client. If the handler has answered before, this has no effect.
    const Fault fault{.status = 500, .message = "the server failed to handle the request"};
    if (exchange->fail(fault)) report_refusal(fault.status);
  }
}

void Connection::pump() {
  if (state_ != State::kAnswering) return;
  if (current_.outbox->overflowed()) return lose(Gone::kSlowClient);
  if (current_.writing || current_.finished) return;
  try {
    compose(current_.outbox->take(kBatchBytes));
  } catch (...) {
    return lose(Gone::kDisconnected);  // a part is missing, so what follows must not be sent
  }
  if (!out_.empty()) {
    current_.writing = true;
    current_.last_taken = Clock::now();
    write_some();
  } else if (current_.finished) {
    end_exchange();
  }
  arm();
}

void Connection::compose(Outbox::Batch batch) {
  current_.finished = batch.finished;
  current_.cut = batch.cut;
  if (batch.answer) {
    const Answer& answer = *batch.answer;
    current_.close_after |= answer.close || stopping_;
    append_head(out_, {.status = answer.status,
                       .content_type = answer.content_type,
                       .fields = answer.fields,
                       .more_fields = current_.more_fields,
                       .request_id = current_.request_id,
                       .length = answer.body.size(),
                       .close = current_.close_after});
    if (!current_.head_only) out_ += answer.body;
  }
  if (batch.start) {
    current_.start = std::move(*batch.start);
    current_.streaming = true;
    current_.close_after |= !current_.chunked || stopping_ || current_.head_only;
    append_head(out_, {.status = 200,
                       .content_type = current_.start.content_type,
                       .fields = current_.start.fields,
                       .more_fields = current_.more_fields,
                       .request_id = current_.request_id,
                       .chunked = current_.chunked,
                       .close = current_.close_after});
  }
  if (current_.streaming && !current_.head_only) compose_stream(batch);
  current_.outbox->set_in_flight(out_.size());
}

void Connection::compose_stream(const Outbox::Batch& batch) {
  std::string text;
  for (const auto& event : batch.events) event->render(text);
  if (!current_.chunked) {
    out_ += text;
    return;
  }
  append_chunk(out_, text);
  if (current_.finished && !current_.cut) out_ += kLastChunk;
}

void Connection::write_some() {
  socket_.async_write_some(asio::buffer(out_.data() + written_, out_.size() - written_),
                           [self = shared_from_this()](const Error& error, size_t size) {
                             self->on_written(error, size);
                           });
}

void Connection::on_written(const Error& error, size_t size) {
  if (state_ == State::kClosed) return;
  if (error) return lose(Gone::kDisconnected);
  current_.last_taken = Clock::now();
  written_ += size;
  current_.outbox->set_in_flight(out_.size() - written_);
  if (written_ < out_.size()) return write_some();
  current_.writing = false;
  out_.clear();
  written_ = 0;
  if (current_.finished) return end_exchange();
  pump();
  if (std::exchange(current_.probe_next, false) && state_ == State::kAnswering &&
      !current_.writing) {
    probe();
  }
}

void Connection::end_exchange() {
  if (current_.cut) return lose(Gone::kDisconnected);
  const bool is_last = current_.close_after || stopping_;
  current_ = {};
  // A connection that waits for its next request does not hold the memory of a long answer.
  if (out_.capacity() > kBatchBytes) std::string().swap(out_);
  if (is_last) return linger();
  state_ = State::kReading;
  reader_.next(Clock::now());
  // Posted, so that a thousand pipelined requests are no recursion.
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->consume();
    self->read_more();
    self->arm();
  });
}

TimePoint Connection::deadline() const {
  if (state_ == State::kLingering) return linger_end_;
  if (state_ != State::kAnswering) return reader_.deadline();
  TimePoint next = current_.answer_end;
  if (current_.writing) {
    next = std::min(next, current_.last_taken + set_->options.limits.client_stall);
  } else if (current_.streaming) {
    next = std::min(next, current_.last_taken + current_.start.ping_interval);
  }
  return reading_ ? next : std::min(next, Clock::now() + kPollTime);
}

void Connection::arm() {
  if (state_ == State::kClosed) return;
  const TimePoint next = deadline();
  // A later deadline leaves the timer alone: on_time() looks again.
  if (next >= armed_) return;
  armed_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const Error& error) {
    if (error || self->state_ == State::kClosed) return;
    self->armed_ = TimePoint::max();
    self->on_time();
    self->arm();
  });
}

void Connection::on_time() {
  if (state_ == State::kAnswering && !reading_ && look_at_peer()) return;
  if (state_ == State::kAnswering && Clock::now() >= current_.answer_end) {
    current_.answer_end = TimePoint::max();
    current_.outbox->expire();
  }
  if (Clock::now() < deadline()) return;
  if (state_ == State::kLingering) return close();
  if (state_ == State::kReading) {
    const auto fault = reader_.expire();
    return fault ? refuse(*fault) : close();
  }
  if (current_.writing) return lose(Gone::kSlowClient);
  if (current_.streaming) send_ping();
}

void Connection::send_ping() {
  std::string text;
  current_.start.ping(text);
  current_.last_taken = Clock::now();
  if (current_.head_only || text.empty()) return;
  current_.chunked ? append_chunk(out_, text) : void(out_ += text);
  current_.outbox->set_in_flight(out_.size());
  current_.writing = true;
  write_some();
}

short Connection::peer_events() {
  pollfd state{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&state, 1, 0) > 0 ? state.revents : short{0};
}

bool Connection::peer_is_gone() { return (peer_events() & (POLLHUP | POLLERR)) != 0; }

// Sees an end behind input that is not read, too.
bool Connection::look_at_peer() {
  if (peer_is_gone()) {
    lose(Gone::kDisconnected);
  } else if (!current_.input_ended && (peer_events() & POLLRDHUP) != 0) {
    on_end_of_input();
  }
  return state_ == State::kClosed;
}

void Connection::linger() {
  state_ = State::kLingering;
  linger_end_ = Clock::now() + set_->options.limits.linger;
  in_.clear();
  Error ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  read_more();
  arm();
}

void Connection::lose(Gone reason) {
  if (state_ == State::kClosed) return;
  close();
  if (current_.outbox) current_.outbox->lose(reason);
}

void Connection::close() {
  state_ = State::kClosed;
  timer_.cancel();
  Error ignored;
  socket_.close(ignored);
}

}  // namespace sluice::http
