// Sampling on the CPU: one row per work item, scratch kept by each thread.
//
// Called by cpu/cpu_ops only; the contract is ops/sample.h. Shapes were checked before this point.
// Thread rule: enqueue only.
#pragma once

#include "ops/sample.h"

namespace sluice {

class CpuStream;

namespace cpu {

void sample(CpuStream& stream, const SampleArgs& args);

}  // namespace cpu
}  // namespace sluice
