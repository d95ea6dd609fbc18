// Page selection in double precision, written from the definitions. Used by tests only.
// Thread rule: pure functions over host-readable memory.
#pragma once

#include <vector>

#include "ops/pages/page_selection.h"

namespace sluice::reference {

// What `bounds.minmax` must be after the op: entries of pages that hold a row of the batch are
// computed, all others are returned as they are.
std::vector<double> key_bounds(const UpdateKeyBoundsArgs& args);

// What `scores` must be; NaN where nothing is to be written. `magnitude`, when not null, receives
// the sum of the absolute terms of each score's best head: the measure of rounding errors.
std::vector<double> page_scores(const ScorePagesArgs& args,
                                std::vector<double>* magnitude = nullptr);

// The lists, in the order of `pages.page_count`. Scores are taken from `args`, not recomputed.
std::vector<std::vector<int32_t>> selected_pages(const SelectPagesArgs& args);

}  // namespace sluice::reference
