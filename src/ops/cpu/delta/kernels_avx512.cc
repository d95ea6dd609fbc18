// The inner loops of the gated delta rule for AVX-512. Thread rule: see delta/kernels.h.
namespace sluice {
namespace {

constexpr int kDeltaLanes = 16;

}  // namespace
}  // namespace sluice

#include "ops/cpu/delta/kernels_impl.h"

namespace sluice {

const DeltaKernels& delta_kernels_avx512() { return kKernels; }

}  // namespace sluice
