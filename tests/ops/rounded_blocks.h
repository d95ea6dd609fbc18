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
inline KvBlocksView blocks_like(Machine& machine, const KvBlocksView& kv, KvElement element) {
  KvBlocksView to = kv;
  to.shape.element = element;
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

// All tokens of blocks of bf16, rounded.
template <KvElement kElement>
KvBlocksView rounded(Machine& machine, const KvBlocksView& kv) {
  const KvBlocksView to = blocks_like(machine, kv, kElement);
  const auto round = [&](const uint16_t* row, std::byte* half, int32_t token) {
    const uint8_t scale =
        round_kv_row(kElement, row, kv.shape.head_dim,
                     reinterpret_cast<uint8_t*>(half + to.shape.row_offset(token)));
    half[to.shape.scale_offset(token)] = std::byte{scale};
  };
  for_each_token(kv, [&](int32_t block, int32_t head, int32_t token) {
    round(kv.keys<uint16_t>(block, head, token), to.keys<std::byte>(block, head), token);
    round(kv.values<uint16_t>(block, head, token), to.values<std::byte>(block, head), token);
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
template <KvElement kElement>
KvBlocksView rounded_bf16(Machine& machine, const KvBlocksView& kv) {
  return as_bf16(machine, rounded<kElement>(machine, kv));
}

}  // namespace sluice::testing
