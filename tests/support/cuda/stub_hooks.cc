// Linked in builds without CUDA: never called, since such a build makes no CUDA stream.
#include "support/cuda/cuda_hooks.h"

namespace sluice::testing {

void enqueue_cuda_failure(Stream&, const char*) { SLUICE_CHECK(false, "no CUDA"); }
void enqueue_cuda_gate(Stream&, const Gate&) { SLUICE_CHECK(false, "no CUDA"); }

}  // namespace sluice::testing
