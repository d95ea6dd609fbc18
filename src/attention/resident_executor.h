// ResidentExecutor: attention over KV in the device pool, in one run per layer.
//
// Part of ResidentKv. Thread rule: the engine's thread.
#pragma once

#include <utility>

#include "attention/executor.h"
#include "kv/block_memory.h"
#include "ops/attention/softmax_state.h"

namespace sluice {

class ResidentExecutor final : public Executor {
 public:
  // REQUIRES: policies and pool outlive the executor.
  ResidentExecutor(PolicyPair& policies, DevicePool& pool, int64_t chunk_tokens, SoftmaxState state)
      : Executor(policies, pool.layout(), chunk_tokens), pool_(pool), state_(std::move(state)) {}

  KvBlocksView write_target(const AttentionPass&, LayerId layer) override {
    return pool_.layer(layer);
  }

 private:
  KvBlocksView written(const AttentionPass&, LayerId layer) const override {
    return pool_.layer(layer);
  }
  void for_each_key_run(Stream& stream, const AttentionPass& pass, const PassPart& part,
                        const KeyWalk& walk, const VisitKeys& visit) override;
  void walk(Stream& stream, const AttentionPass& pass, const PassPart& part,
            const LayerInput& input, const Selection& selection) override;

  DevicePool& pool_;
  SoftmaxState state_;  // of rows whose queries differ by zones
};

}  // namespace sluice
