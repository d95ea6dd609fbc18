// RequestReader: bytes of a connection in, complete requests out; with limits on size and time.
//
// Has no socket and no clock, so that tests can drive it. Used by Connection. Thread rule: one
// thread (the connection's strand).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/chunk_decoder.h"
#include "server/http/fault.h"
#include "server/http/head_parser.h"
#include "server/http/limits.h"

namespace sluice::http {

class RequestReader {
 public:
  enum class Step {
    kMore,      // all bytes are used; read more
    kHead,      // head() has just become valid, the body is still to come; call feed again
    kComplete,  // head().request is complete; take it, then next()
    kFault,     // fault(); the connection must be closed
  };

  RequestReader(const Limits& limits, TimePoint now);

  // Uses bytes from the front of `in` and erases them.
  // Order: after kComplete not before next(), after kFault not at all.
  Step feed(std::string& in, TimePoint now);

  // Begins the next request of the connection.
  void next(TimePoint now);

  // After kFault: what was read of it; the path is empty if that was not.
  Head& head() { return head_; }
  const Fault& fault() const { return fault_; }

  // When the first byte of the request came. Order: not while is_idle().
  TimePoint arrived() const { return arrived_; }
  // Whether no byte of a request has come.
  bool is_idle() const { return state_ == State::kIdle; }
  // When expire() has to be called unless bytes come before.
  TimePoint deadline() const;
  // The answer to a client that let the deadline pass: 408, or none for an idle connection.
  std::optional<Fault> expire() const;

 private:
  enum class State { kIdle, kHead, kBody, kComplete };

  Step feed_head(std::string& in, TimePoint now);
  Step feed_body(std::string& in, TimePoint now);
  Step finish_head(std::string_view text, TimePoint now);
  // Looks for the empty line, from where the last call ended, and at each byte on the way: a client
  // that sends LF alone would else wait until the time is over. 0: not here yet.
  size_t scan_head(std::string_view in);
  Step fail(Fault fault);

  const Limits* limits_;
  State state_ = State::kIdle;
  TimePoint arrived_;
  TimePoint since_;      // when the state began
  TimePoint last_byte_;  // of the body
  size_t scanned_ = 0;
  uint64_t body_wire_bytes_ = 0;
  Head head_;
  std::optional<ChunkDecoder> chunks_;
  Fault fault_;
};

}  // namespace sluice::http
