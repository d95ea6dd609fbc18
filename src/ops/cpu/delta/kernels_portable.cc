// The inner loops of the gated delta rule for any CPU. Thread rule: see delta/kernels.h.
namespace sluice {
namespace {

constexpr int kDeltaLanes = 4;

}  // namespace
}  // namespace sluice

#include "ops/cpu/delta/kernels_impl.h"

namespace sluice {

const DeltaKernels& delta_kernels_portable() { return kKernels; }

}  // namespace sluice
