// RMSNorm on the CPU: rows spread over the stream's threads.
//
// Called by cpu/cpu_ops only; the contract is ops/norm.h. Shapes were checked before this point.
// Thread rule: enqueue only.
#pragma once

#include "ops/norm.h"

namespace sluice {

class CpuStream;

namespace cpu {

void rms_norm(CpuStream& stream, const RmsNormArgs& args);

}  // namespace cpu
}  // namespace sluice
