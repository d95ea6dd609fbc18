// Doubles what is in memory whenever more is asked for.
#include "io/gguf/gguf_reader.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.h"
#include "io/gguf/gguf_file.h"

namespace sluice {

size_t GgufReader::take(uint64_t num_bytes, std::string_view what) {
  if (num_bytes > num_left()) {
    fail(
        fmt::format("{} needs {} bytes at byte {}, but the file ends after {}; it is cut or "
                    "damaged, fetch it again",
                    what, num_bytes, position_, file_.num_bytes()));
  }
  const uint64_t end = position_ + num_bytes;
  if (end > kMaxGgufHeaderBytes) {
    fail(fmt::format("{} ends at byte {}; metadata and list of tensors have at most {} bytes", what,
                     end, kMaxGgufHeaderBytes));
  }
  // Doubling keeps the number of reads small without reading a file's tensors: a tokenizer has some
  // megabytes, a file that was cut has less than it says.
  if (end > header_.size()) {
    constexpr uint64_t kLeast = 64 * 1024;
    const size_t old_size = header_.size();
    const uint64_t wanted = std::max({end, uint64_t{2} * old_size, kLeast});
    header_.resize(std::min({wanted, file_.num_bytes(), kMaxGgufHeaderBytes}));
    file_.read(old_size, std::as_writable_bytes(std::span(header_)).subspan(old_size));
  }
  return std::exchange(position_, end);
}

std::string_view GgufReader::string(std::string_view what, uint64_t max_bytes) {
  const auto size = number<uint64_t>(what);
  if (size > max_bytes) {
    fail(fmt::format("{} is a text of {} bytes; at most {} are possible", what, size, max_bytes));
  }
  const size_t at = take(size, what);
  return {header_.data() + at, static_cast<size_t>(size)};
}

void GgufReader::fail(std::string message) const {
  throw Error(ErrorCode::kModel, std::move(message), file_.path().string());
}

}  // namespace sluice
