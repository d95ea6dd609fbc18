// One form for each range of values.
#include "events/msgpack_writer.h"

#include <bit>
#include <limits>

#include "core/error.h"

namespace sluice {

void MsgpackWriter::big_endian(uint64_t value, int size) {
  for (int i = size - 1; i >= 0; --i) byte(static_cast<uint8_t>(value >> (8 * i)));
}

void MsgpackWriter::unsigned_number(uint64_t value) {
  if (value < 0x80) return byte(static_cast<uint8_t>(value));
  const int num_bits = std::bit_width(value);
  const int log = num_bits <= 8 ? 0 : num_bits <= 16 ? 1 : num_bits <= 32 ? 2 : 3;
  byte(static_cast<uint8_t>(0xcc + log));
  big_endian(value, 1 << log);
}

// Numbers that are not negative have the unsigned forms, which all readers take for signed ones,
// too.
void MsgpackWriter::number(int64_t value) {
  if (value >= 0) return unsigned_number(static_cast<uint64_t>(value));
  if (value >= -32) return byte(static_cast<uint8_t>(value));
  const int log = value >= std::numeric_limits<int8_t>::min()    ? 0
                  : value >= std::numeric_limits<int16_t>::min() ? 1
                  : value >= std::numeric_limits<int32_t>::min() ? 2
                                                                 : 3;
  byte(static_cast<uint8_t>(0xd0 + log));
  big_endian(static_cast<uint64_t>(value), 1 << log);
}

// A Unix time needs more digits than 32 bits have.
void MsgpackWriter::real(double value) {
  byte(0xcb);
  big_endian(std::bit_cast<uint64_t>(value), 8);
}

// Texts alone have a form with a length of 8 bits.
void MsgpackWriter::text(std::string_view value) {
  if (value.size() >= 32 && value.size() < 0x100) {
    byte(0xd9);
    byte(static_cast<uint8_t>(value.size()));
  } else {
    header(value.size(), 0xa0, 32, 0xda);
  }
  bytes_.append(value);
}

void MsgpackWriter::list(size_t num_entries) { header(num_entries, 0x90, 16, 0xdc); }

void MsgpackWriter::map(size_t num_entries) { header(num_entries, 0x80, 16, 0xde); }

// The form of 32 bits follows that of 16.
void MsgpackWriter::header(size_t count, uint8_t short_form, size_t short_end,
                           uint8_t form_of_16_bits) {
  SLUICE_CHECK(count <= std::numeric_limits<uint32_t>::max(), "{} entries", count);
  if (count < short_end) return byte(static_cast<uint8_t>(short_form | count));
  const bool fits_16_bits = count <= std::numeric_limits<uint16_t>::max();
  byte(static_cast<uint8_t>(form_of_16_bits + (fits_16_bits ? 0 : 1)));
  big_endian(count, fits_16_bits ? 2 : 4);
}

}  // namespace sluice
