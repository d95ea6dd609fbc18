// Checks of the options of sparse policies, and the page size derived from them.
//
// Used by make_policies and by the policies, which read their other options themselves. Thread
// rule: pure functions.
#pragma once

#include <cstdint>

#include "ops/kv_blocks.h"
#include "sluice/sparse_options.h"

namespace sluice {

// Errors: kInvalidArgument naming option, value and allowed range.
void validate(const SparseOptions& options);

// Tokens of a page in blocks of that shape: options.page_tokens; by default 32, or 16 if the block
// size is no multiple of 32.
// Errors: kInvalidArgument if options.page_tokens does not divide the block size.
int32_t choose_page_tokens(const SparseOptions& options, const KvBlockShape& block);

}  // namespace sluice
