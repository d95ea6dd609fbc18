// Limits: what one client of the HTTP server may cost. The fields hold bytes, counts and times.
//
// Used by the server's options, by the readers of heads and bodies, and by connections.
// Thread rule: a value; it does not change while the server runs.
#pragma once

#include <chrono>
#include <cstddef>

namespace sluice::http {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

struct Limits {
  // A request's head (request line and fields), its number of fields and the target in it.
  size_t head_bytes = 16 << 10;
  size_t num_fields = 100;
  size_t target_bytes = 8 << 10;
  // A request's body as it is sent: sizes, extensions and trailers of chunks count.
  size_t body_bytes = 8 << 20;
  // From the first byte of a head to its end.
  Milliseconds head_time{10'000};
  // Between two bytes of a body.
  Milliseconds body_silence{30'000};
  // After body_grace, a body must have come at this rate on average.
  Milliseconds body_grace{10'000};
  size_t body_bytes_per_second = 64 << 10;
  // A connection without a request.
  Milliseconds idle_time{75'000};
  // More connections are closed when they are accepted.
  size_t num_connections = 1024;
  // From a complete request to the end of its answer; then Exchange::on_late. 0: no limit.
  Milliseconds answer_time{0};
  // Bytes of later requests that are read while an answer is produced.
  size_t kept_bytes = 16 << 10;
  // Bytes of a stream that wait for the client, and the time without one byte taken. A client that
  // is gone without a word is noticed after a sixth more, or up to another sixth later.
  size_t client_buffer_bytes = 16 << 20;
  Milliseconds client_stall{60'000};
  // After the last answer of a connection, input is read and dropped this long, or until the client
  // closes: a close with unread input would make the client's system drop the answer.
  Milliseconds linger{2'000};
};

}  // namespace sluice::http
