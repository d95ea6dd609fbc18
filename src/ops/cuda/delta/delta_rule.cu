// The gated delta rule on CUDA: which rows are steps. Thread rule: host thread, enqueue only.
#include "core/error.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/delta_rule.cuh"
#include "ops/cuda/delta/delta_rule.h"

namespace sluice::cuda {

void CudaOps::delta_rule(Stream& on, const DeltaRuleArgs& args) const {
  const DeltaShape& shape = args.states.shape;
  if (shape.k_dim > kMaxCudaKDim) {
    fail(ErrorCode::kUnsupported,
         "delta_rule on CUDA has keys of at most {} channels, not {}; use the device 'cpu'",
         kMaxCudaKDim, shape.k_dim);
  }
  CudaStream& stream = as_cuda(on);
  const int64_t num_rows = args.mixed.dim(0);
  RuleCall call{.mixed = args.mixed.data<float>(),
                .gates = args.gates.data<float>(),
                .a_log = args.a_log.data<float>(),
                .dt_bias = args.dt_bias.data<float>(),
                .out = args.out.data<float>(),
                .rows = pass_rows(args.rows, num_rows, args.states.num_slots),
                .states = args.states};
  if (num_rows == 0 || call.rows.num_seqs == 0) return;
  stream.submit("delta_rule", [&](cudaStream_t) {
    call.rows.report = stream.report("delta_rule", kBadSlot);
    launch_steps(stream, call, StepRows::kAll);
  });
}

}  // namespace sluice::cuda
