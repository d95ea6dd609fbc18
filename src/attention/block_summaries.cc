// Arrays that describe any one block as a pass.
#include "attention/block_summaries.h"

#include <numeric>
#include <vector>

namespace sluice {

size_t BlockSummaries::device_bytes(int32_t num_blocks) {
  return (static_cast<size_t>(num_blocks) + 2) * sizeof(int32_t);
}

BlockSummaries::BlockSummaries(PolicyPair& policies, Device& device, Stream& compute,
                               const KvLayout& layout, int32_t num_blocks)
    : policies_(policies),
      compute_(compute),
      block_tokens_(layout.block.block_tokens),
      memory_(device.allocate(device_bytes(num_blocks), MemoryKind::kDevice)) {
  std::vector<int32_t> host(static_cast<size_t>(num_blocks) + 2);
  std::iota(host.begin(), host.end() - 2, 0);
  host.back() = block_tokens_;
  compute.copy({.dst = memory_.data(),
                .src = reinterpret_cast<const std::byte*>(host.data()),
                .num_bytes = host.size() * sizeof(int32_t)});
  compute.synchronize();  // the copy reads `host`
  const TensorView all(memory_.data(), DType::kI32, {int64_t{num_blocks} + 2});
  numbers_ = all.rows(0, num_blocks);
  row_begin_ = all.rows(num_blocks, 2);
}

void BlockSummaries::add(LayerId layer, const KvBlocksView& kv, int32_t index, BlockId id) {
  const TensorView zero = numbers_.rows(0, 1);
  policies_.on_keys_written(compute_, {.kind = PassKind::prefill(),
                                       .layer = layer,
                                       .batch = {.row_begin = row_begin_,
                                                 .first_pos = zero,
                                                 .max_rows = block_tokens_,
                                                 .max_kv_tokens = block_tokens_},
                                       .kv = kv,
                                       .kv_begin = zero,
                                       .block_table = numbers_.rows(index, 1).reshape({1, 1}),
                                       .block_ids = numbers_.rows(id.value, 1).reshape({1, 1})});
}

}  // namespace sluice
