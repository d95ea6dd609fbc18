// copy_blocks on the CPU. Called by cpu/cpu_ops only; the contract is ops/copy_blocks.h.
// Thread rule: enqueue only.
#pragma once

#include "ops/copy_blocks.h"

namespace sluice {

class CpuStream;

namespace cpu {

// With a simulated link of a set rate the blocks take their time on it, like copies to the device.
void copy_blocks(CpuStream& stream, const CopyBlocksArgs& args);

}  // namespace cpu
}  // namespace sluice
