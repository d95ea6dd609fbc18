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
    if (!self->outbox_ && !self->lingering_) self->close();
  });
}

void Connection::read_more() {
  const Limits& limits = set_->options.limits;
  const bool full = outbox_ && in_.size() >= limits.kept_bytes;
  if (closed_ || reading_ || full) return;
  reading_ = true;
  socket_.async_read_some(
      asio::buffer(piece_),
      [self = shared_from_this()](const Error& error, size_t size) { self->on_read(error, size); });
}

void Connection::on_read(const Error& error, size_t size) {
  reading_ = false;
  if (closed_) return;
  if (error == asio::error::eof) return on_end_of_input();
  if (error) return lose(Gone::kDisconnected);
  if (!lingering_) in_.append(piece_.data(), size);
  if (!outbox_ && !lingering_) consume();
  read_more();
  arm();
}

// A client that has closed its sending side may still read, or may be gone: both look alike until
// it is sent something.
void Connection::on_end_of_input() {
  if (!outbox_) return close();
  input_ended_ = true;
  probe();
  arm();
}

// Sends what every client skips. The machine of one that is gone answers with a reset, by which
// peer_is_gone knows. HTTP/1.0 has nothing to skip before an answer, so there the client counts as
// gone.
void Connection::probe() {
  const bool has_events = streaming_ && !head_only_;
  if (peer_is_gone() || (!has_events && !chunked_)) return lose(Gone::kDisconnected);
  watch_peer();
  // What is being written may have left before the client did.
  probe_next_ = writing_;
  if (finished_ || writing_) return;
  if (has_events) return send_ping();
  if (!streaming_ && !send_continue()) lose(Gone::kDisconnected);
}

void Connection::watch_peer() {
  socket_.async_wait(Socket::wait_error, [self = shared_from_this()](const Error&) {
    if (!self->closed_ && self->outbox_ && self->peer_is_gone()) self->lose(Gone::kDisconnected);
  });
}

void Connection::consume() {
  while (!closed_ && !outbox_ && !lingering_) {
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
  head_only_ = request.method == "HEAD";
  request_id_ = request.id;
  fault_body_ = set_->options.router.faults_of(request.path);
}

// Whether the request may go on; otherwise it has been answered, and its body is not read.
bool Connection::begin_body() {
  const Head& head = reader_.head();
  note_head();
  if (set_->options.answer_fields) more_fields_ = set_->options.answer_fields(head.request);
  const Router& router = set_->options.router;
  auto found = router.find(head.request.method, head.request.path);
  std::optional<Fault> fault;
  if (auto* unknown = std::get_if<Fault>(&found)) {
    fault = std::move(*unknown);
    route_ = router.pattern_of(head.request.path);
  } else {
    match_ = std::move(std::get<Router::Match>(found));
    route_ = match_.pattern;
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
  if (request_id_.empty()) request_id_ = make_request_id();
  report_refusal(fault.status);
  outbox_ = std::make_shared<Outbox>(0, [] {});
  close_after_ = stopping_ || fault.close;
  outbox_->answer(fault_answer(fault, fault_body_, request_id_));
  pump();
}

void Connection::report_refusal(int status) {
  const auto& report = set_->options.on_refusal;
  if (!report) return;
  const Request& request = reader_.head().request;
  report({.status = status,
          .route = route_,
          .method = request.method,
          .path = request.path,
          .id = request_id_,
          .arrived = reader_.arrived()});
}

void Connection::call_handler() {
  Head& head = reader_.head();
  Request request = std::move(head.request);
  request.captures = std::move(match_.captures);
  close_after_ = stopping_ || !head.keep_alive;
  chunked_ = request.minor_version == 1;
  const Milliseconds answer_time = set_->options.limits.answer_time;
  if (answer_time > Milliseconds(0)) answer_end_ = Clock::now() + answer_time;
  outbox_ =
      std::make_shared<Outbox>(set_->options.limits.client_buffer_bytes, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        asio::post(self->socket_.get_executor(), [weak] {
          if (const auto connection = weak.lock()) connection->pump();
        });
      });
  auto exchange = std::make_shared<Exchange>(outbox_, request.id, fault_body_);
  try {
    (*match_.handler)(std::move(request), exchange);
  } catch (...) {
    // The text is not for the client. If the handler has answered before, this has no effect.
    const Fault fault{.status = 500, .message = "the server failed to handle the request"};
    if (exchange->fail(fault)) report_refusal(fault.status);
  }
}

void Connection::pump() {
  if (closed_ || !outbox_) return;
  if (outbox_->overflowed()) return lose(Gone::kSlowClient);
  if (writing_ || finished_) return;
  try {
    compose(outbox_->take(kBatchBytes));
  } catch (...) {
    return lose(Gone::kDisconnected);  // a part is missing, so what follows must not be sent
  }
  if (!out_.empty()) {
    writing_ = true;
    last_taken_ = Clock::now();
    write_some();
  } else if (finished_) {
    end_exchange();
  }
  arm();
}

void Connection::compose(Outbox::Batch batch) {
  finished_ = batch.finished;
  cut_ = batch.cut;
  if (batch.answer) {
    const Answer& answer = *batch.answer;
    close_after_ |= answer.close || stopping_;
    append_head(out_, {.status = answer.status,
                       .content_type = answer.content_type,
                       .fields = answer.fields,
                       .more_fields = more_fields_,
                       .request_id = request_id_,
                       .length = answer.body.size(),
                       .close = close_after_});
    if (!head_only_) out_ += answer.body;
  }
  if (batch.start) {
    start_ = std::move(*batch.start);
    streaming_ = true;
    close_after_ |= !chunked_ || stopping_ || head_only_;
    append_head(out_, {.status = 200,
                       .content_type = start_.content_type,
                       .fields = start_.fields,
                       .more_fields = more_fields_,
                       .request_id = request_id_,
                       .chunked = chunked_,
                       .close = close_after_});
  }
  if (streaming_ && !head_only_) compose_stream(batch);
  outbox_->set_in_flight(out_.size());
}

void Connection::compose_stream(const Outbox::Batch& batch) {
  std::string text;
  for (const auto& event : batch.events) event->render(text);
  if (!chunked_) {
    out_ += text;
    return;
  }
  append_chunk(out_, text);
  if (finished_ && !cut_) out_ += kLastChunk;
}

void Connection::write_some() {
  socket_.async_write_some(asio::buffer(out_.data() + written_, out_.size() - written_),
                           [self = shared_from_this()](const Error& error, size_t size) {
                             self->on_written(error, size);
                           });
}

void Connection::on_written(const Error& error, size_t size) {
  if (closed_) return;
  if (error) return lose(Gone::kDisconnected);
  last_taken_ = Clock::now();
  written_ += size;
  outbox_->set_in_flight(out_.size() - written_);
  if (written_ < out_.size()) return write_some();
  writing_ = false;
  out_.clear();
  written_ = 0;
  if (finished_) return end_exchange();
  pump();
  if (std::exchange(probe_next_, false) && !closed_ && !writing_) probe();
}

void Connection::end_exchange() {
  if (cut_) return lose(Gone::kDisconnected);
  outbox_.reset();
  answer_end_ = TimePoint::max();
  finished_ = false;
  streaming_ = false;
  input_ended_ = false;
  probe_next_ = false;
  start_ = {};
  // A connection that waits for its next request does not hold the memory of a long answer.
  if (out_.capacity() > kBatchBytes) std::string().swap(out_);
  if (close_after_ || stopping_) return linger();
  request_id_.clear();
  fault_body_ = fault_body;
  route_ = {};
  more_fields_.clear();
  reader_.next(Clock::now());
  // Posted, so that a thousand pipelined requests are no recursion.
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->consume();
    self->read_more();
    self->arm();
  });
}

TimePoint Connection::deadline() const {
  if (lingering_) return linger_end_;
  if (!outbox_) return reader_.deadline();
  TimePoint next = answer_end_;
  if (writing_) next = std::min(next, last_taken_ + set_->options.limits.client_stall);
  if (streaming_ && !writing_) next = std::min(next, last_taken_ + start_.ping_interval);
  return reading_ ? next : std::min(next, Clock::now() + kPollTime);
}

void Connection::arm() {
  if (closed_) return;
  const TimePoint next = deadline();
  // A later deadline leaves the timer alone: on_time() looks again.
  if (next >= armed_) return;
  armed_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const Error& error) {
    if (error || self->closed_) return;
    self->armed_ = TimePoint::max();
    self->on_time();
    self->arm();
  });
}

void Connection::on_time() {
  if (outbox_ && !reading_ && look_at_peer()) return;
  if (outbox_ && Clock::now() >= answer_end_) {
    answer_end_ = TimePoint::max();
    outbox_->expire();
  }
  if (Clock::now() < deadline()) return;
  if (lingering_) return close();
  if (!outbox_) {
    const auto fault = reader_.expire();
    return fault ? refuse(*fault) : close();
  }
  if (writing_) return lose(Gone::kSlowClient);
  if (streaming_) send_ping();
}

void Connection::send_ping() {
  std::string text;
  start_.ping(text);
  last_taken_ = Clock::now();
  if (head_only_ || text.empty()) return;
  chunked_ ? append_chunk(out_, text) : void(out_ += text);
  outbox_->set_in_flight(out_.size());
  writing_ = true;
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
  } else if (!input_ended_ && (peer_events() & POLLRDHUP) != 0) {
    on_end_of_input();
  }
  return closed_;
}

void Connection::linger() {
  lingering_ = true;
  linger_end_ = Clock::now() + set_->options.limits.linger;
  in_.clear();
  Error ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  read_more();
  arm();
}

void Connection::lose(Gone reason) {
  if (closed_) return;
  close();
  if (outbox_) outbox_->lose(reason);
}

void Connection::close() {
  closed_ = true;
  timer_.cancel();
  Error ignored;
  socket_.close(ignored);
}

}  // namespace sluice::http
