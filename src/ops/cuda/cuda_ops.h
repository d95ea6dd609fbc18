// CudaOps: the CUDA kernels behind ops_of. Each op is defined where its kernels are, in ops/cuda/.
//
// Used through cuda_ops() of cuda_ops_door.h; benches make one of their own. Shapes were checked
// before an op is called. Thread rule: stateless; scratch and libraries belong to the stream
// (op_state.h).
#pragma once

#include "ops/ops.h"

namespace sluice::cuda {

class CudaOps final : public Ops {
 public:
  size_t memory_bytes(const OpNeeds& needs) const override;
  void prepare(Stream& stream, const OpNeeds& needs) const override;
  size_t packed_weight_bytes(int64_t num_rows, int64_t num_cols,
                             WeightFormat format) const override;
  bool keeps_gguf(WeightFormat format) const override;

  SLUICE_CORE_OPS(SLUICE_DECLARE_OP)
  SLUICE_EXPERT_OPS(SLUICE_DECLARE_OP)
  SLUICE_DELTA_OPS(SLUICE_DECLARE_OP)
  SLUICE_PAGE_OPS(SLUICE_DECLARE_OP)
  SLUICE_TILE_OPS(SLUICE_DECLARE_OP)
};

}  // namespace sluice::cuda
