// SwiGLU and row gathering on the CPU.
//
// Called by cpu/cpu_ops only; the contract is ops/activation.h. Shapes were checked before this
// point. Thread rule: enqueue only.
#pragma once

#include "ops/activation.h"

namespace sluice {

class CpuStream;

namespace cpu {

void swiglu(CpuStream& stream, const SwigluArgs& args);
void gather_rows(CpuStream& stream, const GatherRowsArgs& args);

}  // namespace cpu
}  // namespace sluice
