// Chooses between the two kinds of residency, and sums what each allocates.
#include "attention/make_residency.h"

#include "attention/offloaded_kv.h"
#include "attention/resident_kv.h"
#include "kv/hot_page_cache.h"
#include "ops/attention/softmax_state.h"

namespace sluice {

// The offload engine counts all of its device memory at once; users see its parts apart, since
// different options change them.
std::vector<MemoryNeed> residency_memory(const ResidencySizes& sizes) {
  const KvLayout& layout = sizes.layout;
  const auto bytes_of = [&](int64_t num_blocks) {
    return static_cast<size_t>(num_blocks) * layout.block_bytes_all_layers();
  };
  const auto state_bytes = [&](int64_t num_rows) {
    return SoftmaxState::bytes(num_rows, sizes.num_q_heads, layout.block.head_dim);
  };
  if (!sizes.offloaded) {
    return {{"KV cache", "device", bytes_of(sizes.num_blocks)},
            {"softmax state", "device", state_bytes(sizes.pass.zone_rows)}};
  }
  const OffloadSizes& parts = sizes.offloaded->sizes;
  const size_t tail_bytes = bytes_of(parts.num_tails);
  const size_t resident_bytes = bytes_of(parts.num_resident_blocks);
  const size_t page_bytes = HotPageCache::device_bytes(layout, sizes.num_blocks, parts.hot_pages);
  return {{"KV ring and stage", "device",
           OffloadEngine::device_bytes(layout, parts) - tail_bytes - resident_bytes - page_bytes},
          {"KV tails", "device", tail_bytes},
          {"softmax state", "device", state_bytes(sizes.offloaded->state_rows)},
          {"resident KV blocks", "device", resident_bytes},
          {"hot KV pages", "device", page_bytes},
          {"KV host tier", "pinned", OffloadEngine::pinned_bytes(layout, parts)}};
}

size_t residency_array_bytes(const ResidencySizes& sizes) {
  return sizes.offloaded ? OffloadedKv::array_bytes(sizes.pass, *sizes.offloaded)
                         : ResidentKv::array_bytes(sizes.pass);
}

std::unique_ptr<Residency> make_residency(PolicyPair& policies, Device& device, Stream& compute,
                                          const ResidencySizes& sizes,
                                          const AllocationProgress& on_progress) {
  if (!sizes.offloaded) {
    return std::make_unique<ResidentKv>(policies, device, compute, sizes.layout, sizes.num_blocks,
                                        sizes.pass, sizes.num_q_heads);
  }
  return std::make_unique<OffloadedKv>(policies, device, compute, sizes.layout, sizes.pass,
                                       *sizes.offloaded, sizes.num_q_heads, on_progress);
}

}  // namespace sluice
