// Attention on the CPU: cuts a call into work items and runs the kernel of the best ISA.
//
// Called by cpu/cpu_ops only; the contract is ops/attention.h. Shapes were checked before this
// point. Thread rule: enqueue only.
#pragma once

#include "device/cpu/cpu_features.h"
#include "ops/attention.h"

namespace sluice {

class CpuStream;

namespace cpu {

// `isa` is best_isa() except in tests, which run every kernel that the machine has.
// Types: on AMX the probabilities are rounded to bf16 for the product with V; f32 elsewhere.
void attention(CpuStream& stream, const AttentionArgs& args, CpuIsa isa);

}  // namespace cpu
}  // namespace sluice
