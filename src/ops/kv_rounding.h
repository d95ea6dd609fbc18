// Rows of KV elements of one byte: how a row of bf16 is rounded, and what it stands for after that.
//
// A row is the key, or the value, of one token and KV head: numbers of the element times one power
// of two, its scale. The loops are the same for all elements; a format has the arithmetic of one
// number (ops/e4m3.h, ops/int8_rows.h), without branches, so that they become vectors. A row that
// is not finite becomes NaN as a whole.
//
// Used by all CPU code that interprets KV; a GPU has the same functions for its registers
// (ops/cuda/kv_codec.cuh, kv_rounding.cuh). In an unnamed namespace, as e4m3.h. Thread rule: pure
// functions.
#pragma once

#include <cstdint>

#include "core/kv_element.h"
#include "ops/e4m3.h"
#include "ops/int8_rows.h"

namespace sluice {
namespace {

// The scale of a row of NaN: the byte with which debug builds fill freed memory.
inline constexpr uint8_t kNanKvScale = 255;

// A format: scale_of(largest) of the bits of a row's largest magnitude, which is finite; and, for
// one scale, round(number) of a bf16 and read(number), the bf16 that it stands for.
struct E4m3Format {
  explicit constexpr E4m3Format(uint8_t scale) : origin(e4m3_origin(scale)) {}
  static constexpr uint8_t scale_of(int16_t largest) { return e4m3_scale_of(largest); }
  constexpr uint8_t round(uint16_t number) const { return to_e4m3(number, origin); }
  constexpr uint16_t read(uint8_t number) const { return e4m3_to_bf16(number, origin); }

  int16_t origin;
};

struct Int8Format {
  explicit constexpr Int8Format(uint8_t scale)
      : factor(power_of_two(scale)), inverse(power_of_two(254 - scale)) {}
  static constexpr uint8_t scale_of(int16_t largest) { return int8_scale_of(largest); }
  constexpr uint8_t round(uint16_t number) const { return to_int8(number, inverse); }
  constexpr uint16_t read(uint8_t number) const { return int8_to_bf16(number, factor); }

  float factor;
  float inverse;
};

template <typename Format>
uint8_t round_row(const uint16_t* from, int32_t count, uint8_t* to) {
  int16_t largest = 0;
  for (int32_t d = 0; d < count; ++d) {
    const auto magnitude = static_cast<int16_t>(from[d] & 0x7fff);
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest >= 0x7f80) {
    for (int32_t d = 0; d < count; ++d) to[d] = 0;
    return kNanKvScale;
  }
  const uint8_t scale = Format::scale_of(largest);
  const Format format(scale);
  for (int32_t d = 0; d < count; ++d) to[d] = format.round(from[d]);
  return scale;
}

template <typename Format>
void read_row(const uint8_t* from, uint8_t scale, int32_t count, uint16_t* to) {
  if (scale == kNanKvScale) {
    for (int32_t d = 0; d < count; ++d) to[d] = 0x7fc0;
    return;
  }
  const Format format(scale);
  for (int32_t d = 0; d < count; ++d) to[d] = format.read(from[d]);
}

// Rounds a row of bf16 to nearest even and returns its scale. REQUIRES of both: an element with
// scales.
inline uint8_t round_kv_row(KvElement element, const uint16_t* from, int32_t count, uint8_t* to) {
  return element == KvElement::kInt8 ? round_row<Int8Format>(from, count, to)
                                     : round_row<E4m3Format>(from, count, to);
}

// The bf16 row that `from` with this scale stands for.
inline void read_kv_row(KvElement element, const uint8_t* from, uint8_t scale, int32_t count,
                        uint16_t* to) {
  element == KvElement::kInt8 ? read_row<Int8Format>(from, scale, count, to)
                              : read_row<E4m3Format>(from, scale, count, to);
}

}  // namespace
}  // namespace sluice
