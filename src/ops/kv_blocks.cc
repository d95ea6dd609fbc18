// The check of a block's elements, and rows of blocks as bf16.
#include "ops/kv_blocks.h"

#include <algorithm>

#include "core/error.h"
#include "ops/kv_rounding.h"

namespace sluice {
namespace {

// The row of token `token` of the keys, or values, at `half`.
void copy_row(const std::byte* half, const KvBlockShape& shape, int32_t token,
              std::span<BFloat16> to) {
  expect_kv_element("a copy of KV", shape,
                    {KvElement::kBFloat16, KvElement::kE4m3, KvElement::kInt8});
  const std::byte* row = half + shape.row_offset(token);
  if (shape.element == KvElement::kBFloat16) {
    std::copy_n(reinterpret_cast<const BFloat16*>(row), shape.head_dim, to.begin());
    return;
  }
  const auto* scale = reinterpret_cast<const uint8_t*>(half + shape.scale_offset(token));
  read_kv_row(shape.element, reinterpret_cast<const uint8_t*>(row), *scale, shape.head_dim,
              reinterpret_cast<uint16_t*>(to.data()));
}

}  // namespace

void expect_kv_element(std::string_view op, const KvBlockShape& shape,
                       std::initializer_list<KvElement> has_kernels) {
  if (std::ranges::find(has_kernels, shape.element) != has_kernels.end()) return;
  fail(ErrorCode::kUnsupported, "{} has no kernel for KV of {} on this device; keep KV in {}", op,
       kv_element_name(shape.element), kv_element_name(*has_kernels.begin()));
}

void copy_key(const KvBlocksView& kv, int32_t index, int32_t kv_head, int32_t token,
              std::span<BFloat16> to) {
  copy_row(kv.block(index) + kv.shape.key_offset(kv_head), kv.shape, token, to);
}

void copy_value(const KvBlocksView& kv, int32_t index, int32_t kv_head, int32_t token,
                std::span<BFloat16> to) {
  copy_row(kv.block(index) + kv.shape.value_offset(kv_head), kv.shape, token, to);
}

}  // namespace sluice
