// The ops of the gated delta rule, which have no CUDA kernels yet: the plan of an engine refuses
// their models (engine/plan/weight_kernels.h), and these calls refuse what passes it by. Thread
// rule: none.
#include "core/error.h"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {
namespace {

[[noreturn]] void refuse(const char* op) {
  fail(ErrorCode::kUnsupported, "{} has no kernel on CUDA; use the device 'cpu'", op);
}

}  // namespace

void CudaOps::short_conv(Stream&, const ShortConvArgs&) const { refuse("short_conv"); }
void CudaOps::delta_rule(Stream&, const DeltaRuleArgs&) const { refuse("delta_rule"); }
void CudaOps::gated_norm(Stream&, const GatedNormArgs&) const { refuse("gated_norm"); }
void CudaOps::sigmoid_gate(Stream&, const SigmoidGateArgs&) const { refuse("sigmoid_gate"); }

}  // namespace sluice::cuda
