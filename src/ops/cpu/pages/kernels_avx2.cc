// Page selection's inner loops for AVX2. Thread rule: see pages/kernels.h.
#include "ops/cpu/pages/kernels_impl.h"

namespace sluice {
namespace {

struct Lanes {
  static constexpr int kLanes = 8;
  using Floats = float __attribute__((vector_size(32)));
  using Words = uint32_t __attribute__((vector_size(32)));
  using Halves = uint16_t __attribute__((vector_size(16)));
  using Keys = int16_t __attribute__((vector_size(32)));
};

constexpr PageKernels kKernels = make_page_kernels<Lanes>();

}  // namespace

const PageKernels& page_kernels_avx2() { return kKernels; }

}  // namespace sluice
