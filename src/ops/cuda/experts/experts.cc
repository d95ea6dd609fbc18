// Mixtures of experts have no kernels on a GPU yet; the engine's plan refuses such a model before
// anything is loaded (engine/plan/engine_plan.cc).
#include "core/error.h"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {
namespace {

[[noreturn]] void refuse_experts(const char* op) {
  fail(ErrorCode::kUnsupported, "{} has no kernel on a GPU; use --device cpu", op);
}

}  // namespace

void CudaOps::route_experts(Stream&, const RouteExpertsArgs&) const {
  refuse_experts("route_experts");
}

void CudaOps::expert_mlp(Stream&, const ExpertMlpArgs&) const { refuse_experts("expert_mlp"); }

}  // namespace sluice::cuda
