// CpuOps: the CPU's kernels behind ops_of. Each op is defined where its kernels are, in ops/cpu/.
//
// Used by ops/ops.cc; tests and benches make one for an instruction set of their choice. Only bits
// of attention and of the matrix products depend on the set; on AMX attention rounds probabilities
// to bf16 for the product with V.
// Thread rule: stateless; ops enqueue only.
#pragma once

#include "device/cpu/cpu_features.h"
#include "ops/ops.h"

namespace sluice::cpu {

class CpuOps final : public Ops {
 public:
  // REQUIRES: the machine has `isa`.
  explicit CpuOps(CpuIsa isa) : isa_(isa) {}

  // 0 and nothing to prepare: scratch belongs to threads (ops/cpu/thread_scratch.h), and there are
  // no libraries to open.
  size_t memory_bytes(const OpNeeds&) const override { return 0; }
  void prepare(Stream&, const OpNeeds&) const override {}
  size_t packed_weight_bytes(int64_t num_rows, int64_t num_cols,
                             WeightFormat format) const override;
  bool keeps_gguf(WeightFormat) const override { return true; }

  SLUICE_CORE_OPS(SLUICE_DECLARE_OP)
  SLUICE_EXPERT_OPS(SLUICE_DECLARE_OP)
  SLUICE_DELTA_OPS(SLUICE_DECLARE_OP)
  SLUICE_PAGE_OPS(SLUICE_DECLARE_OP)
  SLUICE_TILE_OPS(SLUICE_DECLARE_OP)

 private:
  CpuIsa isa_;
};

}  // namespace sluice::cpu
