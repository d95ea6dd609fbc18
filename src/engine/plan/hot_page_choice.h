// How many hot pages a budget of device memory holds, and whether that is enough to use them.
//
// One step of engine_plan.cc. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "attention/selection_rule.h"
#include "kv/hot_page_cache.h"
#include "kv/kv_layout.h"

namespace sluice {

// What the choice follows from.
struct HotPageInput {
  KvLayout layout;
  int32_t num_blocks = 0;  // of the host tier
  SelectionRule rule;      // of decode; it makes page lists
  int64_t max_tokens = 0;  // of a sequence
  int64_t max_seqs = 0;    // of a decode pass
};

struct HotPageChoice {
  HotPageSizes sizes;  // no places: the budget holds no whole list
  std::string note;    // a sentence for the plan
};

HotPageChoice choose_hot_pages(const HotPageInput& input, size_t bytes);

}  // namespace sluice
