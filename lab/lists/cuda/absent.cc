// Linked instead of the kernel in a build without CUDA. It is never called: such a build creates no
// CUDA device.
#include "core/error.h"
#include "lab/lists/replay_pages.h"

namespace sluice::lab {

void replay_pages_on_cuda(Stream&, const ReplayPagesArgs&) {
  check_failed("a build with CUDA kernels", "this one has none");
}

}  // namespace sluice::lab
