// Checks of the options of sparse policies, and values derived from them.
//
// Used by make_policies and by the policies, which read their other options themselves. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ops/kv_blocks.h"
#include "ops/tiles/tile_rule.h"
#include "sluice/sparse_options.h"

namespace sluice {

// Errors: kInvalidArgument naming option, value and allowed range.
void validate(const SparseOptions& options);

// Tokens of a page in blocks of that shape: options.page_tokens; by default 32, or 16 if the block
// size is no multiple of 32.
// Errors: kInvalidArgument if options.page_tokens does not divide the block size.
int32_t choose_page_tokens(const SparseOptions& options, const KvBlockShape& block);

// Rows of a segment: options.segment_tokens, 4096 by default, kPromptScopeTokens where it is 0.
int32_t segment_tokens_of(const SparseOptions& options);

// Checks that at most one of these options is given. `policy` is named in the error.
// Errors: kInvalidArgument naming those that are given.
void require_one_of(const SparseOptions& options, std::string_view policy,
                    std::span<const std::string_view> names);

// The value of the option `name`, or else `when_unset`.
// Errors: kInvalidArgument unless it is a power of two.
int32_t power_of_two(std::string_view name, const std::optional<int32_t>& value,
                     int32_t when_unset);

// A share of 0 to 1 in units of kMassOne, rounded down.
uint32_t mass_share(double share);

// The choice by sparse_coverage, or else by `when_unset`. Errors: those of `validate`.
TileRule coverage_choice(const SparseOptions& options, double when_unset);

}  // namespace sluice
