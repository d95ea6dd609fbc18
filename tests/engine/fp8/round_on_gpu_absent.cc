// Linked in builds without CUDA: never called, since such a build makes no CUDA stream.
#include "engine/fp8/round_on_gpu.h"

namespace sluice::testing {

void round_on_gpu(Stream&, const RopeAndWriteKvArgs&, KvElement, bool) {
  SLUICE_CHECK(false, "no CUDA");
}

}  // namespace sluice::testing
