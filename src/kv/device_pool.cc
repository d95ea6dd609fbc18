#include "kv/device_pool.h"

#include "core/error.h"
#include "device/debug_fill.h"

namespace sluice {

DevicePool::DevicePool(Device& device, const KvLayout& layout, int32_t num_blocks)
    : layout_(layout), num_blocks_(num_blocks) {
  SLUICE_CHECK(layout.num_layers > 0 && num_blocks > 0 && layout.block_bytes() > 0,
               "{} layers of {} blocks of {} bytes", layout.num_layers, num_blocks,
               layout.block_bytes());
  buffer_ = device.allocate(static_cast<size_t>(num_blocks) * layout.block_bytes_all_layers(),
                            MemoryKind::kDevice);
}

KvBlocksView DevicePool::layer(int32_t layer_index) const {
  SLUICE_CHECK(layer_index >= 0 && layer_index < layout_.num_layers, "layer {} of {}", layer_index,
               layout_.num_layers);
  const size_t layer_bytes = static_cast<size_t>(num_blocks_) * layout_.block_bytes();
  return {.base = buffer_.data() + static_cast<size_t>(layer_index) * layer_bytes,
          .stride_bytes = layout_.block_bytes(),
          .num_blocks = num_blocks_,
          .shape = layout_.block};
}

void DevicePool::poison(BlockId id, Stream& stream) const {
  SLUICE_CHECK(id.value >= 0 && id.value < num_blocks_, "block {} of {}", id.value, num_blocks_);
  if constexpr (kDebugFill) {
    for (int32_t i = 0; i < layout_.num_layers; ++i) {
      const auto block = reinterpret_cast<std::byte*>(layer(i).block(id.value));
      stream.fill(block, layout_.block_bytes(), kNanByte);
    }
  }
}

}  // namespace sluice
