// gather_pages on the CPU. Called by cpu/cpu_ops only; the contract is ops/gather_pages.h.
// Thread rule: enqueue only.
#pragma once

#include "ops/gather_pages.h"

namespace sluice {

class CpuStream;

namespace cpu {

// With a simulated link of a set rate the pages take their time on it, like copies to the device.
void gather_pages(CpuStream& stream, const GatherPagesArgs& args);

}  // namespace cpu
}  // namespace sluice
