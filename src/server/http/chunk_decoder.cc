#include "server/http/chunk_decoder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/hex.h"
#include "server/http/head_parser.h"

namespace sluice::http {
namespace {

// Above any body limit that fits in memory, and far from overflow.
constexpr size_t kMaxSizeDigits = 12;

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

bool is_token_char(char c) {
  return static_cast<unsigned char>(c) > 0x20 && c != 0x7f &&
         std::string_view("\"(),/:;<=>?@[\\]{}").find(c) == std::string_view::npos;
}

}  // namespace

size_t ChunkDecoder::feed(std::string_view bytes, std::string& body) {
  size_t used = 0;
  while (used < bytes.size() && !done() && !fault_) {
    size_t step = 1;
    if (state_ == State::kData) {
      step = take_data(bytes.substr(used), body);
    } else {
      take(bytes[used]);
    }
    used += step;
    wire_bytes_ += step;
    if (wire_bytes_ > limits_->body_bytes && !fault_) {
      fail(413, fmt::format("the chunked body has over {} bytes on the wire, which is the limit",
                            limits_->body_bytes));
    }
  }
  return used;
}

size_t ChunkDecoder::take_data(std::string_view bytes, std::string& body) {
  const size_t size = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
  body.append(bytes.substr(0, size));
  left_ -= size;
  if (left_ == 0) state_ = State::kDataCr;
  return size;
}

void ChunkDecoder::take(char c) {
  switch (state_) {
    case State::kSize:
      return take_size(c);
    case State::kExtension:
      return take_extension(c);
    case State::kSizeEnd:
      return c == '\n' ? end_size() : fail(400, "a chunk's size must end with CR LF");
    case State::kDataCr:
      return expect(c, '\r', State::kDataLf);
    case State::kDataLf:
      return expect(c, '\n', State::kSize);
    case State::kTrailer:
      return take_trailer(c);
    case State::kData:
    case State::kDone:
      return;
  }
}

void ChunkDecoder::take_size(char c) {
  const int digit = hex_value(c);
  if (digit >= 0) {
    left_ = left_ * 16 + static_cast<uint64_t>(digit);
    if (++num_digits_ > kMaxSizeDigits) fail(400, "a chunk's size has too many digits");
    return;
  }
  if (num_digits_ == 0 || (c != '\r' && c != ';')) {
    return fail(400, "a chunk's size must be hexadecimal digits, then CR LF or ;");
  }
  state_ = c == '\r' ? State::kSizeEnd : State::kExtension;
}

void ChunkDecoder::take_extension(char c) {
  if (++line_bytes_ > kMaxLineBytes) {
    return fail(400, fmt::format("a chunk's extension has over {} bytes", kMaxLineBytes));
  }
  if (c == '\r') {
    state_ = State::kSizeEnd;
  } else if (is_control(c)) {
    fail(400, "a chunk's extension has a control character");
  }
}

void ChunkDecoder::end_size() {
  if (left_ > limits_->body_bytes) {
    return fail(413, fmt::format("a chunk has {} bytes; this server takes bodies up to {}", left_,
                                 limits_->body_bytes));
  }
  state_ = left_ > 0 ? State::kData : State::kTrailer;
  num_digits_ = 0;
  line_bytes_ = 0;
}

void ChunkDecoder::take_trailer(char c) {
  if (++trailer_bytes_ > limits_->head_bytes) {
    return fail(431, fmt::format("the trailers have over {} bytes", limits_->head_bytes));
  }
  const bool after_cr = !trailer_line_.empty() && trailer_line_.back() == '\r';
  if (after_cr != (c == '\n') || (is_control(c) && c != '\r' && c != '\n')) {
    return fail(400, "a trailer has a control character, or a CR or LF alone");
  }
  trailer_line_ += c;
  if (c == '\n') end_trailer_line();
}

void ChunkDecoder::end_trailer_line() {
  const std::string line = std::exchange(trailer_line_, {});
  if (line == "\r\n") {
    state_ = State::kDone;
    return;
  }
  const size_t colon = line.find(':');
  const bool is_field =
      colon != std::string::npos && colon > 0 &&
      std::all_of(line.begin(), line.begin() + static_cast<ptrdiff_t>(colon), is_token_char);
  if (!is_field) fail(400, "a trailer is not a name, a colon and a value");
}

void ChunkDecoder::expect(char c, char expected, State next) {
  if (c != expected) return fail(400, "a chunk's data must end with CR LF");
  state_ = next;
}

void ChunkDecoder::fail(int status, std::string message) {
  fault_ = closing_fault(status, std::move(message));
}

}  // namespace sluice::http
