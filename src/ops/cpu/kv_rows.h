// Keys and values of KV blocks as bf16: where they lie, or read into a room that the caller has.
//
// Used by the CPU's ops that read single keys and values; attention reads tiles
// (attention/tiles.h). Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "ops/cpu/rows/kernels.h"
#include "ops/kv_blocks.h"
#include "ops/kv_rounding.h"

namespace sluice::cpu {

// What the CPU's kernels read and write (expect_kv_element).
inline constexpr std::initializer_list<KvElement> kCpuElements = {
    KvElement::kBFloat16, KvElement::kE4m3, KvElement::kInt8};

inline void expect_cpu_kv(std::string_view op, const KvBlockShape& shape) {
  expect_kv_element(op, shape, kCpuElements, /*takes_bf16_keys=*/true);
}

// Room for a row that does not lie in memory as bf16; no head is wider.
struct KvRowRoom {
  alignas(64) uint16_t numbers[kMaxRopeHeadDim];
};

// Token `token` of the keys, or values, of a head, which begin at `from`; valid as long as both the
// blocks and the room.
inline const uint16_t* kv_row(const KvHalf& half, const std::byte* from, int32_t token,
                              uint16_t* room) {
  const std::byte* row = from + half.row_offset(token);
  if (half.element == KvElement::kBFloat16) return reinterpret_cast<const uint16_t*>(row);
  const auto* scale = reinterpret_cast<const uint8_t*>(from + half.scale_offset(token));
  read_kv_row(half.element, reinterpret_cast<const uint8_t*>(row), *scale, half.head_dim, room);
  return room;
}

inline const uint16_t* key_row(const KvBlocksView& kv, int32_t index, int32_t kv_head,
                               int32_t token, uint16_t* room) {
  return kv_row(kv.shape.keys(), kv.block(index) + kv.shape.key_offset(kv_head), token, room);
}

inline const uint16_t* value_row(const KvBlocksView& kv, int32_t index, int32_t kv_head,
                                 int32_t token, uint16_t* room) {
  return kv_row(kv.shape.values(), kv.block(index) + kv.shape.value_offset(kv_head), token, room);
}

}  // namespace sluice::cpu
