// MarkedText: UTF-8 text of which every byte knows whether it came from a message.
//
// Used by all of src/tokenizer/jinja/. Text from messages ("given") stays marked wherever a
// template copies it, so that the tokenizer never parses special tokens in it. Thread rule: values
// only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::jinja {

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string bytes, bool given) : bytes_(std::move(bytes)), starts_given_(given) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // Whether any byte is given.
  bool has_given() const { return !borders_.empty() || (starts_given_ && !bytes_.empty()); }

  void append(std::string_view bytes, bool given);
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  // Appends bytes [begin, end) of another text with their marks. REQUIRES: &other != this.
  void append(const MarkedText& other, size_t begin, size_t end);

  // Bytes [begin, end) with their marks. Time: the length, and a binary search in the marks.
  MarkedText slice(size_t begin, size_t end) const;

  // Calls take(bytes, given) for each maximal run of equal marks in [begin, end), in order.
  template <typename Take>
  void for_each_run(size_t begin, size_t end, Take take) const {
    const std::string_view all = bytes_;
    for (size_t i = first_border_after(begin); begin < end; ++i) {
      const size_t stop = i < borders_.size() && borders_[i] < end ? borders_[i] : end;
      take(all.substr(begin, stop - begin), starts_given_ != (i % 2 == 1));
      begin = stop;
    }
  }

 private:
  // The index of the first border behind `offset`.
  size_t first_border_after(size_t offset) const;
  // Makes `given` the mark of the bytes that are appended next.
  void set_mark_at_end(bool given);

  std::string bytes_;
  bool starts_given_ = false;
  std::vector<size_t> borders_;  // ascending offsets inside the text where the mark changes
};

}  // namespace sluice::jinja
