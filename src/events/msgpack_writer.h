// MsgpackWriter: appends values to a text in the format of MessagePack, each in its shortest form.
//
// Used by event_payload. Only what events need: no binary data, no extensions, lists and maps of
// fewer than 2^32 entries. A list or a map is its header, then its entries. Thread rule: one
// thread at a time. Source: https://github.com/msgpack/msgpack/blob/master/spec.md
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

class MsgpackWriter {
 public:
  void nil() { byte(0xc0); }
  void unsigned_number(uint64_t value);
  void number(int64_t value);
  void real(double value);  // always of 64 bits
  void text(std::string_view value);
  void list(size_t num_entries);
  void map(size_t num_entries);

  const std::string& bytes() const { return bytes_; }

 private:
  void byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  // `size` low bytes of the value, highest first.
  void big_endian(uint64_t value, int size);
  void header(size_t count, uint8_t short_form, size_t short_end, uint8_t form_of_16_bits);

  std::string bytes_;
};

}  // namespace sluice
