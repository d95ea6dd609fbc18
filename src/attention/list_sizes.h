// How many pages and tokens the lists of a PageRule take, worked out on the host.
//
// select_pages (ops/page_selection.h) makes the lists on the device, where only their contents
// depend on scores: their sizes are counts that the host can repeat. Used by policies, for the
// memory of lists, for what observers report and for how many slots a gather can need.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "ops/page_selection.h"

namespace sluice {

// The first page that holds a token of [anchor_pos - recent_tokens, anchor_pos].
int64_t first_recent_page(const PageRule& rule, int32_t page_tokens, int64_t anchor_pos);

// Pages of the list with that anchor, up to the page of the anchor.
int64_t num_listed_pages(const PageRule& rule, int32_t page_tokens, int64_t anchor_pos);

// Pages of the longest list that a sequence of up to `max_tokens` tokens can get.
int64_t max_listed_pages(const PageRule& rule, int32_t page_tokens, int64_t max_tokens);

// Whether a list with an anchor at `anchor_pos` or later may take a page of [begin_pos, end_pos).
// REQUIRES: begin_pos and end_pos are multiples of page_tokens; end_pos <= anchor_pos.
bool may_list(const PageRule& rule, int32_t page_tokens, int64_t anchor_pos, int64_t begin_pos,
              int64_t end_pos);

}  // namespace sluice
