// Which GPUs the code of this build was compiled for. Host thread.
#pragma once

namespace sluice::cuda {

// Ten times the compute capability that the code which runs on the current GPU was compiled for, 89
// or 90. A newer GPU than the build knows runs the newest PTX there is, translated by the driver;
// that code has only the instructions of its own version. Errors: kUnsupported if no code of the
// build runs on the GPU.
int code_version();

}  // namespace sluice::cuda
