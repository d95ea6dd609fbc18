// Rotary embedding on the CPU: angles once per pass, rotation and KV write once per layer.
//
// Called by cpu/cpu_ops only; the contract is ops/rope.h. Shapes were checked before this point.
// Thread rule: enqueue only.
#pragma once

#include "ops/rope.h"

namespace sluice {

class CpuStream;

namespace cpu {

void rope_angles(CpuStream& stream, const RopeAnglesArgs& args);
void rope_and_write_kv(CpuStream& stream, const RopeAndWriteKvArgs& args);

}  // namespace cpu
}  // namespace sluice
