// Rows of KV elements of one byte: which of them rounds and reads a row.
//
// Used by all CPU code that interprets KV; a GPU has the same functions for its registers
// (ops/cuda/e4m3.cuh). In an unnamed namespace, as e4m3.h. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "core/kv_element.h"
#include "ops/e4m3.h"
#include "ops/int8_rows.h"

namespace sluice {
namespace {

// Rounds a row of bf16 and returns its scale. REQUIRES of both: an element with scales.
inline uint8_t round_kv_row(KvElement element, const uint16_t* from, int32_t count, uint8_t* to) {
  return element == KvElement::kInt8 ? round_to_int8(from, count, to)
                                     : round_to_e4m3(from, count, to);
}

// The bf16 row that `from` with this scale stands for.
inline void read_kv_row(KvElement element, const uint8_t* from, uint8_t scale, int32_t count,
                        uint16_t* to) {
  element == KvElement::kInt8 ? read_int8(from, scale, count, to)
                              : read_e4m3(from, scale, count, to);
}

}  // namespace
}  // namespace sluice
