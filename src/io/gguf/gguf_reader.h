// The bytes before the tensors of a GGUF file, read from the front in growing pieces.
//
// Used by GgufFile alone. Thread rule: a local variable of one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "io/model_file.h"

namespace sluice {

class GgufReader {
 public:
  // Aliasing: both outlive this object. Fills `header` as far as it is read, and a little further.
  GgufReader(const ModelFile& file, std::vector<char>& header) : file_(file), header_(header) {}

  size_t position() const { return position_; }
  // Bytes of the file that are not read yet.
  uint64_t num_left() const { return file_.num_bytes() - position_; }

  // Skips `num_bytes`, which must be in the file, and returns where they begin. Errors: kModel with
  // `what` for the end of the file, or of kMaxGgufHeaderBytes.
  size_t take(uint64_t num_bytes, std::string_view what);

  template <typename T>
  T number(std::string_view what) {
    const size_t at = take(sizeof(T), what);
    T value;
    std::memcpy(&value, header_.data() + at, sizeof value);
    return value;
  }

  // A length of 64 bits and as many bytes; the view is valid until the next call.
  std::string_view string(std::string_view what, uint64_t max_bytes);

  // Throws kModel with the file's name.
  [[noreturn]] void fail(std::string message) const;

 private:
  const ModelFile& file_;
  std::vector<char>& header_;
  size_t position_ = 0;
};

}  // namespace sluice
