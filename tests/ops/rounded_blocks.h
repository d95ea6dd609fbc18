// The KV of a test in elements of one byte, and what it stands for in bf16: a call over the one
// must give the bits of the same call over the other.
//
// Used by the tests of KV in 8 bits. Thread rule: host thread.
#pragma once

#include "op_test_util.h"
#include "ops/kv_blocks.h"
#include "ops/kv_rounding.h"

namespace sluice::testing {

// Blocks of the same number and shape, but for the element, full of NaN.
inline KvBlocksView blocks_like(Machine& machine, const KvBlocksView& kv, KvElement element,
                                bool keys_in_bf16 = false) {
  KvBlocksView to = kv;
  to.shape.element = element;
  to.shape.keys_in_bf16 = keys_in_bf16;
  to.stride_bytes = to.shape.block_bytes() + 64;
  to.base = machine.poisoned(static_cast<size_t>(kv.num_blocks) * to.stride_bytes);
  return to;
}

// Calls fn(block, head, token) for every place of a token.
template <typename F>
void for_each_token(const KvBlocksView& kv, const F& fn) {
  for (int32_t block = 0; block < kv.num_blocks; ++block) {
    for (int32_t head = 0; head < kv.shape.num_kv_heads; ++head) {
      for (int32_t token = 0; token < kv.shape.block_tokens; ++token) fn(block, head, token);
    }
  }
}

// Writes a row of bf16 to the keys, or values, at `to`.
inline void put_row(const KvHalf& half, const uint16_t* row, std::byte* to, int32_t token) {
  std::byte* place = to + half.row_offset(token);
  if (half.element == KvElement::kBFloat16) {
    std::copy_n(reinterpret_cast<const std::byte*>(row), half.row_bytes(), place);
    return;
  }
  to[half.scale_offset(token)] =
      std::byte{round_kv_row(half.element, row, half.head_dim, reinterpret_cast<uint8_t*>(place))};
}

// All tokens of blocks of bf16, rounded; or their values alone.
template <KvElement kElement, bool kKeysInBf16 = false>
KvBlocksView rounded(Machine& machine, const KvBlocksView& kv) {
  const KvBlocksView to = blocks_like(machine, kv, kElement, kKeysInBf16);
  for_each_token(kv, [&](int32_t block, int32_t head, int32_t token) {
    put_row(to.shape.keys(), kv.keys<uint16_t>(block, head, token), to.keys<std::byte>(block, head),
            token);
    put_row(to.shape.values(), kv.values<uint16_t>(block, head, token),
            to.values<std::byte>(block, head), token);
  });
  return to;
}

// What blocks of any element stand for.
inline KvBlocksView as_bf16(Machine& machine, const KvBlocksView& kv) {
  const KvBlocksView to = blocks_like(machine, kv, KvElement::kBFloat16);
  const auto width = static_cast<size_t>(kv.shape.head_dim);
  for_each_token(kv, [&](int32_t block, int32_t head, int32_t token) {
    copy_key(kv, block, head, token, {to.keys<BFloat16>(block, head, token), width});
    copy_value(kv, block, head, token, {to.values<BFloat16>(block, head, token), width});
  });
  return to;
}

// bf16 as it is after a rounding.
template <KvElement kElement, bool kKeysInBf16 = false>
KvBlocksView rounded_bf16(Machine& machine, const KvBlocksView& kv) {
  return as_bf16(machine, rounded<kElement, kKeysInBf16>(machine, kv));
}

}  // namespace sluice::testing
