// BlockMemory: KV blocks of every layer in one allocation, on the device or on the host.
//
// ResidentKv has a DevicePool; OffloadEngine has a HostTier and, for blocks that stay on the
// device, DevicePlaces. It gives addresses only; BlockManager assigns blocks to sequences. Thread
// rule: one host thread; access to the memory follows stream order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"

namespace sluice {

// [layer][block][block bytes]. With the layer outermost, neighbouring blocks of one layer are one
// contiguous copy, and one block of every layer is one strided copy.
class BlockMemory {
 public:
  // All blocks of one layer; entry i is the block with BlockId i.
  KvBlocksView layer(LayerId layer_id) const;
  // The first byte of one block of one layer. REQUIRES (checked): both ids are in range.
  std::byte* block(LayerId layer_id, BlockId id) const;

  // Debug builds (kDebugFill): fills the block with NaN in every layer, so that a read of a block
  // that was given back gives NaN and not another request's KV. Release builds: does nothing.
  // Order: enqueued on `stream`, which must be ordered after the block's last reader and before its
  // next writer; with one compute stream, calling it when the block is discarded is enough.
  void poison(BlockId id, Stream& stream) const;

  // From a block of one layer to the same block of the next.
  size_t layer_stride_bytes() const {
    return static_cast<size_t>(num_blocks_) * layout_.block_bytes();
  }
  const KvLayout& layout() const { return layout_; }
  int32_t num_blocks() const { return num_blocks_; }
  size_t bytes() const { return buffer_.size_bytes(); }

 protected:
  BlockMemory(const KvLayout& layout, int32_t num_blocks, Buffer buffer)
      : layout_(layout), num_blocks_(num_blocks), buffer_(std::move(buffer)) {}

 private:
  KvLayout layout_;
  int32_t num_blocks_;
  Buffer buffer_;
};

// KV blocks in device memory.
class DevicePool : public BlockMemory {
 public:
  // REQUIRES: num_layers, num_blocks and the block's dimensions are positive.
  // Errors: kDoesNotFit from the device, when it has less than that.
  DevicePool(Device& device, const KvLayout& layout, int32_t num_blocks);
};

// KV blocks in pinned host memory.
class HostTier : public BlockMemory {
 public:
  // As above; `on_progress` reports the bytes pinned. Errors: also those that on_progress throws.
  HostTier(Device& device, const KvLayout& layout, int32_t num_blocks,
           const AllocationProgress& on_progress = nullptr);
};

}  // namespace sluice
