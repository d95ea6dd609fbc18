// One allocation, addressed by layer and block.
#include "kv/block_memory.h"

#include "core/error.h"
#include "device/debug_fill.h"

namespace sluice {
namespace {

// The allocation's size; checks the sizes before anything is allocated.
size_t checked_bytes(const KvLayout& layout, int32_t num_blocks) {
  SLUICE_CHECK(layout.num_layers > 0 && num_blocks > 0 && layout.block_bytes() > 0,
               "{} layers of {} blocks of {} bytes", layout.num_layers, num_blocks,
               layout.block_bytes());
  return static_cast<size_t>(num_blocks) * layout.block_bytes_all_layers();
}

// Allocates the host tier; an error names the option that sets its size.
Buffer allocate_pinned(Device& device, size_t num_bytes, const AllocationProgress& on_progress) {
  try {
    return device.allocate(num_bytes, MemoryKind::kPinned, on_progress);
  } catch (const Error& error) {
    throw error.in("KV host tier, whose size is kv_host_bytes");
  }
}

}  // namespace

DevicePool::DevicePool(Device& device, const KvLayout& layout, int32_t num_blocks)
    : BlockMemory(layout, num_blocks,
                  device.allocate(checked_bytes(layout, num_blocks), MemoryKind::kDevice)) {}

HostTier::HostTier(Device& device, const KvLayout& layout, int32_t num_blocks,
                   const AllocationProgress& on_progress)
    : BlockMemory(layout, num_blocks,
                  allocate_pinned(device, checked_bytes(layout, num_blocks), on_progress)) {}

KvBlocksView BlockMemory::layer(LayerId layer_id) const {
  SLUICE_CHECK(layer_id.value >= 0 && layer_id.value < layout_.num_layers, "layer {} of {}",
               layer_id.value, layout_.num_layers);
  return {.base = buffer_.data() + static_cast<size_t>(layer_id.value) * layer_stride_bytes(),
          .stride_bytes = layout_.block_bytes(),
          .num_blocks = num_blocks_,
          .shape = layout_.block};
}

std::byte* BlockMemory::block(LayerId layer_id, BlockId id) const {
  SLUICE_CHECK(id.value >= 0 && id.value < num_blocks_, "block {} of {}", id.value, num_blocks_);
  return layer(layer_id).block(id.value);
}

void BlockMemory::poison(BlockId id, Stream& stream) const {
  SLUICE_CHECK(id.value >= 0 && id.value < num_blocks_, "block {} of {}", id.value, num_blocks_);
  if constexpr (kDebugFill) {
    for (const LayerId i : layout_.layers()) {
      stream.fill(block(i, id), layout_.block_bytes(), kNanByte);
    }
  }
}

}  // namespace sluice
