// One pinned allocation.
#include "kv/host_tier.h"

namespace sluice {
namespace {

// An error says which option asks for less.
Buffer allocate_pinned(Device& device, size_t num_bytes, const AllocationProgress& on_progress) {
  try {
    return device.allocate(num_bytes, MemoryKind::kPinned, on_progress);
  } catch (const Error& error) {
    throw error.in("KV host tier, whose size is kv_host_bytes");
  }
}

}  // namespace

HostTier::HostTier(Device& device, const KvLayout& layout, int32_t num_blocks,
                   const AllocationProgress& on_progress)
    : layout_(layout),
      num_blocks_(num_blocks),
      buffer_(allocate_pinned(
          device, static_cast<size_t>(num_blocks) * layout.block_bytes_all_layers(), on_progress)) {
  SLUICE_CHECK(num_blocks > 0 && layout.num_layers > 0);
}

std::byte* HostTier::block(int32_t layer, BlockId id) const {
  SLUICE_CHECK(layer >= 0 && layer < layout_.num_layers && id.value >= 0 && id.value < num_blocks_,
               "block {} of layer {}", id.value, layer);
  return buffer_.data() + static_cast<size_t>(layer) * layer_stride_bytes() +
         static_cast<size_t>(id.value) * layout_.block_bytes();
}

}  // namespace sluice
