// The check of a block's elements, and rows of blocks as bf16.
#include "ops/kv_blocks.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "ops/kv_rounding.h"

namespace sluice {
namespace {

// The row of token `token` of the keys, or values, at `from`.
void copy_row(const std::byte* from, const KvHalf& half, int32_t token, std::span<BFloat16> to) {
  const std::byte* row = from + half.row_offset(token);
  if (half.element == KvElement::kBFloat16) {
    std::copy_n(reinterpret_cast<const BFloat16*>(row), half.head_dim, to.begin());
    return;
  }
  const auto* scale = reinterpret_cast<const uint8_t*>(from + half.scale_offset(token));
  read_kv_row(half.element, reinterpret_cast<const uint8_t*>(row), *scale, half.head_dim,
              reinterpret_cast<uint16_t*>(to.data()));
}

}  // namespace

std::string kv_block_element_name(const KvBlockShape& shape) {
  const std::string name(kv_element_name(shape.element));
  return shape.keys_in_bf16 ? fmt::format("bf16 keys, {} values", name) : name;
}

void expect_kv_element(std::string_view op, const KvBlockShape& shape,
                       std::initializer_list<KvElement> has_kernels, bool takes_bf16_keys) {
  const bool has_kernel = std::ranges::find(has_kernels, shape.element) != has_kernels.end();
  if (has_kernel && (takes_bf16_keys || !shape.keys_in_bf16)) return;
  fail(ErrorCode::kUnsupported, "{} has no kernel for KV of {} on this device; keep KV in {}", op,
       kv_block_element_name(shape), kv_element_name(*has_kernels.begin()));
}

void copy_key(const KvBlocksView& kv, int32_t index, int32_t kv_head, int32_t token,
              std::span<BFloat16> to) {
  copy_row(kv.block(index) + kv.shape.key_offset(kv_head), kv.shape.keys(), token, to);
}

void copy_value(const KvBlocksView& kv, int32_t index, int32_t kv_head, int32_t token,
                std::span<BFloat16> to) {
  copy_row(kv.block(index) + kv.shape.value_offset(kv_head), kv.shape.values(), token, to);
}

}  // namespace sluice
