// ResidentKv: the Residency with all KV in the device pool; a block table per sequence describes
// it, and nothing is transferred.
//
// Made by make_residency for kv_offload "off". Thread rule: the engine's thread.
#pragma once

#include "attention/residency.h"
#include "attention/resident_executor.h"
#include "kv/block_memory.h"

namespace sluice {

class ResidentKv final : public Residency {
 public:
  // Allocates the pool, and the state of zones for limits.zone_rows rows. REQUIRES: policies and
  // compute outlive it. Errors: kDoesNotFit.
  ResidentKv(PolicyPair& policies, Device& device, Stream& compute, const KvLayout& layout,
             int32_t num_blocks, const PassLimits& limits, int64_t num_q_heads = 0);

  static size_t array_bytes(const PassLimits& limits);

  Executor& executor() override { return executor_; }
  PassPlan plan_pass(PassKind kind, std::span<const SequenceRows> sequences) override;
  void describe(const PassShape& shape, Arena& host, Arena& device, AttentionPass& pass) override;
  size_t array_bytes() const override { return array_bytes(limits_); }
  void begin_pass(const AttentionPass&) override {}
  void end_pass() override {}
  void prefetch(std::span<const ExpectedRows>) override {}

  void discard(BlockId id) override { pool_.poison(id, compute_); }
  void synchronize() override {}

  std::unique_ptr<BlockPort> make_port() override;

  int64_t flowing_bytes(const KvView&) const override { return 0; }
  void read_counters(TransferCounters&) const override {}
  bool is_on_device(BlockId) const override { return true; }
  int32_t num_slots() const override { return 0; }
  std::vector<SlotContents> slot_contents() const override { return {}; }
  const std::byte* block_bytes(SequenceId, const SequenceBlock& block,
                               LayerId layer) const override;

 private:
  // The arrays of one pass: block_table i32 [num_seqs, width], the others as in AttentionPass.
  struct Arrays {
    TensorView kv_rows, kv_begin, block_table;
    static Arrays cut(Arena& arena, const PassShape& shape, int64_t width);
  };
  void write_rows(const SequenceRows& rows, const Arrays& host, int64_t row_begin) const;
  int64_t table_width(const PassShape& shape) const;

  Stream& compute_;
  PassLimits limits_;
  PolicyPair& policies_;
  DevicePool pool_;
  ResidentExecutor executor_;
  std::vector<SequenceRows> sequences_;  // of the planned pass
};

}  // namespace sluice
