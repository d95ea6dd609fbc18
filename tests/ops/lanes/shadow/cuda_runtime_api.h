// What kernels and their launches use of the runtime, for lanes.
//
// Thread rule: as lanes.h.
#pragma once

#include "ops/lanes/lanes.h"

using cudaStream_t = void*;

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename Kernel>
int cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int num_bytes) {
  return static_cast<size_t>(num_bytes) <= sluice::lanes::kSharedBytes ? 0 : 1;
}
