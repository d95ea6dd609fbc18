// DevicePool: the memory of all resident KV blocks, taken once at start.
//
// Made by the engine after planning; engine/runner hands its layer views to the kernels. Which
// block belongs to whom is the BlockManager's business; the pool only knows where the bytes are.
// Thread rule: one host thread; the memory itself follows stream order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"

namespace sluice {

class DevicePool {
 public:
  // Takes num_blocks blocks of every layer as one allocation: [layer][block][block bytes].
  // REQUIRES: num_layers, num_blocks and the block's dimensions are positive.
  // Errors: kDoesNotFit from the device, when it has not that much.
  DevicePool(Device& device, const KvLayout& layout, int32_t num_blocks);

  // All blocks of one layer; entry i is the block with BlockId i.
  KvBlocksView layer(int32_t layer_index) const;

  // Debug builds (kDebugFill): fills the block with NaN in every layer, so that whoever reads a
  // block that was given back gets NaN and not another request's KV. Release builds: does nothing.
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

 private:
  KvLayout layout_;
  int32_t num_blocks_;
  Buffer buffer_;
};

}  // namespace sluice
