#include "server/http/request_reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace sluice::http {

RequestReader::RequestReader(const Limits& limits, TimePoint now) : limits_(&limits) { next(now); }

void RequestReader::next(TimePoint now) {
  state_ = State::kIdle;
  since_ = now;
  scanned_ = 0;
  body_wire_bytes_ = 0;
  head_ = {};
  chunks_.reset();
}

RequestReader::Step RequestReader::feed(std::string& in, TimePoint now) {
  if (in.empty() && state_ != State::kComplete) return Step::kMore;
  if (state_ == State::kIdle) {
    state_ = State::kHead;
    since_ = now;
    arrived_ = now;
  }
  return state_ == State::kHead ? feed_head(in, now) : feed_body(in, now);
}

RequestReader::Step RequestReader::feed_head(std::string& in, TimePoint now) {
  const size_t end = scan_head(in);
  if (fault_.close) return Step::kFault;
  const std::string_view seen(in.data(), end > 0 ? end : in.size());
  if (seen.size() > limits_->head_bytes) {
    const bool target_only = seen.substr(0, limits_->head_bytes).find('\n') == std::string::npos;
    if (target_only) {
      return fail(closing_fault(
          414, fmt::format("the request's target has over {} bytes", limits_->target_bytes)));
    }
    return fail(closing_fault(
        431, fmt::format("the request's head has over {} bytes", limits_->head_bytes)));
  }
  if (end == 0) return Step::kMore;
  const Step step = finish_head(seen, now);
  in.erase(0, end);
  return step;
}

RequestReader::Step RequestReader::finish_head(std::string_view text, TimePoint now) {
  if (auto fault = parse_head(text, *limits_, head_)) return fail(std::move(*fault));
  since_ = now;
  last_byte_ = now;
  if (head_.framing == Framing::kChunked) chunks_.emplace(*limits_);
  state_ = head_.framing == Framing::kNone ? State::kComplete : State::kBody;
  return Step::kHead;
}

size_t RequestReader::scan_head(std::string_view in) {
  for (; scanned_ < in.size(); ++scanned_) {
    const auto c = static_cast<unsigned char>(in[scanned_]);
    const bool after_cr = scanned_ > 0 && in[scanned_ - 1] == '\r';
    if (c == '\n' && after_cr) {
      if (scanned_ >= 3 && in[scanned_ - 2] == '\n') return scanned_ + 1;
    } else if (after_cr || (c < 0x20 && c != '\t' && c != '\r')) {
      fail(
          closing_fault(400, fmt::format("byte 0x{:02x} at position {} is not part of a request of "
                                         "HTTP/1.1; this port speaks neither TLS nor HTTP/2",
                                         c, scanned_)));
      return 0;
    }
  }
  return 0;
}

RequestReader::Step RequestReader::feed_body(std::string& in, TimePoint now) {
  if (state_ == State::kComplete) return Step::kComplete;
  std::string& body = head_.request.body;
  size_t used = 0;
  bool done = false;
  if (chunks_) {
    used = chunks_->feed(in, body);
    if (chunks_->fault()) return fail(*chunks_->fault());
    done = chunks_->done();
  } else {
    used = static_cast<size_t>(std::min<uint64_t>(head_.body_bytes - body.size(), in.size()));
    body.append(in, 0, used);
    done = body.size() == head_.body_bytes;
  }
  in.erase(0, used);
  body_wire_bytes_ += used;
  last_byte_ = now;
  if (!done) return Step::kMore;
  state_ = State::kComplete;
  return Step::kComplete;
}

RequestReader::Step RequestReader::fail(Fault fault) {
  fault_ = std::move(fault);
  return Step::kFault;
}

TimePoint RequestReader::deadline() const {
  switch (state_) {
    case State::kIdle:
      return since_ + limits_->idle_time;
    case State::kHead:
      return since_ + limits_->head_time;
    case State::kComplete:
      return TimePoint::max();
    case State::kBody:
      break;
  }
  // The mean rate falls below the limit at the time in which the bytes so far would have come at
  // exactly that rate.
  const Milliseconds fair(body_wire_bytes_ * 1000 / limits_->body_bytes_per_second);
  return std::min(last_byte_ + limits_->body_silence, since_ + std::max(limits_->body_grace, fair));
}

std::optional<Fault> RequestReader::expire() const {
  if (state_ == State::kIdle || state_ == State::kComplete) return std::nullopt;
  if (state_ == State::kHead) {
    return closing_fault(
        408, fmt::format("the request's head took over {} ms", limits_->head_time.count()));
  }
  return closing_fault(
      408,
      fmt::format("the request's body came too slowly: {} bytes, then no byte "
                  "for {} ms, or under {} bytes a second",
                  body_wire_bytes_, limits_->body_silence.count(), limits_->body_bytes_per_second));
}

}  // namespace sluice::http
