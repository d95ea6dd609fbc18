// The check of a block's elements.
#include "ops/kv_blocks.h"

#include "core/error.h"

namespace sluice {

void expect_kv_element(std::string_view op, const KvBlockShape& shape, KvElement has_kernel) {
  if (shape.element == has_kernel) return;
  fail(ErrorCode::kUnsupported, "{} has no kernel for KV of {} on this device; keep KV in {}", op,
       kv_element_name(shape.element), kv_element_name(has_kernel));
}

}  // namespace sluice
