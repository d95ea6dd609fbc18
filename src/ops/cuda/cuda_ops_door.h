// Declares the table of CUDA kernels without a CUDA type, so that host code can include it.
//
// Used by ops.cc only. A build without CUDA links stub_ops.cc instead. Thread rule: any thread.
#pragma once

#include "ops/ops.h"

namespace sluice {

// REQUIRES: a build with CUDA kernels (checked); there is no CUDA device without them.
const Ops& cuda_ops();

}  // namespace sluice
