// What the options of sparse policies must be, and the page size that follows from them.
//
// The policies read SparseOptions themselves; an empty one is the policy's own default. Thread
// rule: pure functions.
#pragma once

#include <cstdint>

#include "ops/kv_blocks.h"
#include "sluice/sparse_options.h"

namespace sluice {

// Errors: kInvalidArgument naming option, value and what is allowed.
void validate(const SparseOptions& options);

// Tokens of a page in blocks of that shape: what was asked for; else 32, or 16 where the block size
// is no multiple of 32.
// Errors: kInvalidArgument when a block is not a whole number of the pages that were asked for.
int32_t choose_page_tokens(const SparseOptions& options, const KvBlockShape& block);

}  // namespace sluice
