// The inner loops of the gated delta rule for AVX2. Thread rule: see delta/kernels.h.
namespace sluice {
namespace {

constexpr int kDeltaLanes = 8;

}  // namespace
}  // namespace sluice

#include "ops/cpu/delta/kernels_impl.h"

namespace sluice {

const DeltaKernels& delta_kernels_avx2() { return kKernels; }

}  // namespace sluice
