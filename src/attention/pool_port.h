// PoolPort: the BlockPort of KV in the device pool. Bytes pass through a few blocks of pinned
// memory.
//
// Made by ResidentKv. Blocks that go out are copied on a stream of their own, and those that come
// in on compute, so that later passes read them. Thread rule: as BlockPort.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "attention/block_summaries.h"
#include "kv/block_memory.h"
#include "kv/block_port.h"

namespace sluice {

class PoolPort final : public BlockPort {
 public:
  // Blocks of pinned memory: enough for several reads at once beside some writes.
  static constexpr int32_t kNumPlaces = 12;
  static constexpr int32_t kMaxOut = 4;

  // Takes the pinned memory. `summaries` may be empty. REQUIRES: pool and compute outlive the port.
  PoolPort(Device& device, Stream& compute, const DevicePool& pool,
           std::optional<BlockSummaries> summaries);

  static size_t pinned_bytes(const KvLayout& layout) {
    return kNumPlaces * layout.block_bytes_all_layers();
  }

  bool begin_out(BlockId id) override;
  bool is_out(BlockId id) override;
  void end_out(BlockId id) override;
  // What fills blocks with NaN in debug builds runs on compute, as what follows.
  void settle() override {}
  bool begin_in(BlockId id) override;
  void end_in(BlockId id, bool is_whole) override;
  std::vector<std::span<std::byte>> layers(BlockId id) const override;

 private:
  enum class State { kFree, kOut, kIn, kLeaving };
  struct Place {
    State state = State::kFree;
    BlockId id;
    std::byte* data = nullptr;
    std::unique_ptr<Event> moved;  // the last copy from or to the pool
  };

  Place* take(BlockId id, State state);
  Place& find(BlockId id, State state);
  std::byte* pool_block(BlockId id) const { return pool_.block(LayerId(0), id); }

  Stream& compute_;
  const DevicePool& pool_;
  std::optional<BlockSummaries> summaries_;
  Buffer memory_;
  std::vector<Place> places_;
  int32_t num_out_ = 0;
  std::unique_ptr<Stream> out_;  // last: it ends before the memory is freed
};

}  // namespace sluice
