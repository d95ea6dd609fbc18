// ResidentExecutor: the walk when all KV lives in the device pool. One run per layer.
//
// Used by the engine with kv_offload "off". Thread rule: the engine's thread.
#pragma once

#include "attention/executor.h"
#include "kv/device_pool.h"

namespace sluice {

class ResidentExecutor final : public Executor {
 public:
  // REQUIRES: policy and pool outlive the executor.
  ResidentExecutor(Policy& policy, DevicePool& pool) : Executor(policy), pool_(pool) {}

  void begin_pass(const AttentionPass&) override {}
  bool capturable(bool /*is_in_place*/) const override { return policy().capturable(); }
  KvBlocksView write_target(const AttentionPass&, int32_t layer) override {
    return pool_.layer(layer);
  }

 private:
  KvBlocksView written(const AttentionPass&, int32_t layer) const override {
    return pool_.layer(layer);
  }
  void walk(Stream& stream, const AttentionPass& pass, const PassPart& part,
            const LayerInput& input, const Selection& selection) override;

  DevicePool& pool_;
};

}  // namespace sluice
