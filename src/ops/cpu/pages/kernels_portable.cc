// Page selection's inner loops for vectors of 16 bytes, which every CPU has. Thread rule: see
// pages/kernels.h.
#include "ops/cpu/pages/kernels_impl.h"

namespace sluice {
namespace {

struct Lanes {
  static constexpr int kLanes = 4;
  using Floats = float __attribute__((vector_size(16)));
  using Words = uint32_t __attribute__((vector_size(16)));
  using Halves = uint16_t __attribute__((vector_size(8)));
  using Keys = int16_t __attribute__((vector_size(16)));
};

constexpr PageKernels kKernels = make_page_kernels<Lanes>();

}  // namespace

const PageKernels& page_kernels_portable() { return kKernels; }

}  // namespace sluice
