// HostTierPort: the BlockPort of offloaded KV. Bytes are read and written where they are, in the
// host tier.
//
// Made by OffloadedKv. Thread rule: as BlockPort.
#pragma once

#include <optional>

#include "attention/block_summaries.h"
#include "attention/offload_executor.h"
#include "kv/block_port.h"
#include "kv/offload_engine.h"

namespace sluice {

class HostTierPort final : public BlockPort {
 public:
  // `summaries` may be empty: no policy has any. REQUIRES: `offload` and `executor` outlive the
  // port.
  HostTierPort(OffloadEngine& offload, OffloadExecutor& executor,
               std::optional<BlockSummaries> summaries)
      : offload_(offload), executor_(executor), summaries_(std::move(summaries)) {}

  bool begin_out(BlockId) override { return true; }
  bool is_out(BlockId id) override { return offload_.is_on_host(id); }
  void end_out(BlockId) override {}
  void settle() override;
  bool begin_in(BlockId) override { return true; }
  void end_in(BlockId id, bool is_whole) override;
  std::vector<std::span<std::byte>> layers(BlockId id) const override;

 private:
  OffloadEngine& offload_;
  OffloadExecutor& executor_;
  std::optional<BlockSummaries> summaries_;
};

}  // namespace sluice
