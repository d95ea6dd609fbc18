// Linked instead of sorted_pairs_sm90.cu and sorted_codes_sm90.cu in a build without sm_90a.
#include "core/error.h"
#include "ops/cuda/experts/experts.h"

namespace sluice::cuda {

bool multiplies_sorted_pairs(CudaStream&) { return false; }

void multiply_sorted_gates(CudaStream&, const ExpertCall&, const ExpertRange&) {
  SLUICE_CHECK(false, "multiply_sorted_gates: a build without sm_90a");
}

void multiply_sorted_downs(CudaStream&, const ExpertCall&, const ExpertRange&) {
  SLUICE_CHECK(false, "multiply_sorted_downs: a build without sm_90a");
}

bool multiplies_sorted_codes(CudaStream&, const ExpertCall&) { return false; }

void multiply_code_gates(CudaStream&, const ExpertCall&, const QuantizedRows&) {
  SLUICE_CHECK(false, "multiply_code_gates: a build without sm_90a");
}

void multiply_code_downs(CudaStream&, const ExpertCall&, const QuantizedRows&) {
  SLUICE_CHECK(false, "multiply_code_downs: a build without sm_90a");
}

}  // namespace sluice::cuda
