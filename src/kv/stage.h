// Stage: the memory into which a prefill pass writes its KV: two buffers, for even and odd layers,
// so that one is written while the other is copied to the host.
//
// Part of OffloadEngine. Thread rule: one host thread; access to the memory follows stream order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"

namespace sluice {

class Stage {
 public:
  // Two buffers of `num_blocks` blocks of one layer.
  Stage(Device& device, const KvBlockShape& shape, int32_t num_blocks)
      : memory_(device.allocate(bytes(shape, num_blocks), MemoryKind::kDevice)) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i] = {.view = {.base = memory_.data() + i * bytes(shape, num_blocks) / 2,
                              .stride_bytes = shape.block_bytes(),
                              .num_blocks = num_blocks,
                              .shape = shape},
                     .left = device.make_event()};
    }
  }

  static size_t bytes(const KvBlockShape& shape, int32_t num_blocks) {
    return 2 * static_cast<size_t>(num_blocks) * shape.block_bytes();
  }

  const KvBlocksView& view(LayerId layer) const { return buffers_[of(layer)].view; }
  std::byte* block(LayerId layer, StageId id) const { return view(layer).block(id.value); }
  // Recorded by the caller when it has enqueued the write-back of the layer's buffer.
  Event& left(LayerId layer) { return *buffers_[of(layer)].left; }

 private:
  struct LayerBuffer {
    KvBlocksView view;
    std::unique_ptr<Event> left;
  };
  static size_t of(LayerId layer) { return static_cast<size_t>(layer.value % 2); }

  Buffer memory_;
  std::array<LayerBuffer, 2> buffers_;
};

}  // namespace sluice
