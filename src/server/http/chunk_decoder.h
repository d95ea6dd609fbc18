// ChunkDecoder: a chunked body, byte by byte, without room for two opinions about its end.
//
// Used by RequestReader. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/fault.h"
#include "server/http/limits.h"

namespace sluice::http {

// Decodes a body in pieces of any size. Extensions and trailers are checked and dropped: a trailer
// never becomes a header.
class ChunkDecoder {
 public:
  // The longest line of a chunk's size with its extension. Real ones have under 20 bytes.
  static constexpr size_t kMaxLineBytes = 1024;

  explicit ChunkDecoder(const Limits& limits) : limits_(&limits) {}

  // Appends the payload of `bytes` to `body`; returns how many bytes belong to this body (all,
  // unless the body ends before). Do not call it again after a fault or after done().
  size_t feed(std::string_view bytes, std::string& body);

  bool done() const { return state_ == State::kDone; }
  // 400 for wrong framing, 413 above Limits::body_bytes on the wire, 431 for trailers above
  // Limits::head_bytes.
  const std::optional<Fault>& fault() const { return fault_; }

 private:
  enum class State { kSize, kExtension, kSizeEnd, kData, kDataCr, kDataLf, kTrailer, kDone };

  size_t take_data(std::string_view bytes, std::string& body);
  void take(char c);
  void take_size(char c);
  void take_extension(char c);
  void take_trailer(char c);
  void end_trailer_line();
  void expect(char c, char expected, State next);
  void end_size();
  void fail(int status, std::string message);

  const Limits* limits_;
  State state_ = State::kSize;
  uint64_t left_ = 0;  // of the current chunk
  size_t num_digits_ = 0;
  size_t line_bytes_ = 0;
  size_t trailer_bytes_ = 0;
  size_t wire_bytes_ = 0;
  std::string trailer_line_;
  std::optional<Fault> fault_;
};

}  // namespace sluice::http
