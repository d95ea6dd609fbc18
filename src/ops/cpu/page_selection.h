// Page selection on the CPU: bounds of keys, scores and lists.
//
// Called by cpu/cpu_ops only; the contracts are in ops/page_selection.h. Shapes were checked before
// this point. Thread rule: enqueue only.
#pragma once

#include "device/cpu/cpu_features.h"
#include "ops/page_selection.h"

namespace sluice {

class CpuStream;

namespace cpu {

// `isa` is best_isa() except in tests; it changes no bit.
void update_key_bounds(CpuStream& stream, const UpdateKeyBoundsArgs& args, CpuIsa isa);
void score_pages(CpuStream& stream, const ScorePagesArgs& args, CpuIsa isa);
void select_pages(CpuStream& stream, const SelectPagesArgs& args);

}  // namespace cpu
}  // namespace sluice
