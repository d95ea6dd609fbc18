// Attention on the CPU: cuts a call into work items and runs the kernel of the best ISA.
//
// Called by cpu/cpu_ops only; the contract is ops/attention.h. Shapes were checked before this point.
// Thread rule: enqueue only.
#pragma once

#include "ops/attention.h"

namespace sluice {

class CpuStream;

namespace cpu {

void attention(CpuStream& stream, const AttentionArgs& args);

}  // namespace cpu
}  // namespace sluice
