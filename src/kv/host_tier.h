// HostTier: the pinned arena where all KV lives when it does not stay on the device.
//
// Owned by OffloadEngine, which is the only one to copy from or to it. Which block belongs to whom
// is the BlockManager's business, whose ids are then ids of this tier. Thread rule: the engine's
// thread; the memory itself follows stream order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"

namespace sluice {

class HostTier {
 public:
  // Takes num_blocks blocks of every layer as one pinned allocation: [layer][block][block bytes].
  // With the layer outermost, neighbouring ids of one layer are one contiguous copy, and one block
  // of every layer is one strided copy. `on_progress` hears how much of it is pinned.
  // Errors: kDoesNotFit from the device; what on_progress throws.
  HostTier(Device& device, const KvLayout& layout, int32_t num_blocks,
           const AllocationProgress& on_progress = nullptr);

  std::byte* block(int32_t layer, BlockId id) const;

  // From a block of one layer to the same block of the next.
  size_t layer_stride_bytes() const {
    return static_cast<size_t>(num_blocks_) * layout_.block_bytes();
  }
  int32_t num_blocks() const { return num_blocks_; }
  size_t bytes() const { return buffer_.size_bytes(); }

 private:
  KvLayout layout_;
  int32_t num_blocks_;
  Buffer buffer_;
};

}  // namespace sluice
