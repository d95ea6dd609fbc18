// PolicyOptions: what a user may say about sparse policies, and the page size that follows from it.
//
// Made by the engine from EngineOptions, where each carries the prefix `sparse_`; read by the
// policies. Empty means "not said": the policy then has its own default. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/kv_blocks.h"

namespace sluice {

inline constexpr int32_t kMinPageTokens = 16;
inline constexpr int32_t kMaxPageTokens = 128;

struct PolicyOptions {
  std::optional<int32_t> topk_tokens;       // budget that scores are spent on
  std::optional<int32_t> page_tokens;       // unit of scoring and selection
  std::optional<int32_t> sink_tokens;       // always attended from the start; beside the budget
  std::optional<int32_t> recent_tokens;     // always attended before the query; beside the budget
  std::optional<int32_t> threshold_tokens;  // positions before this attend to everything
  bool shared_list = false;                 // one list for all KV heads instead of one for each
};

// Errors: kInvalidArgument naming option, value and what is allowed.
void validate(const PolicyOptions& options);

// Tokens of a page in blocks of that shape: what was asked for; else 32, or 16 where the block size
// is no multiple of 32.
// Errors: kInvalidArgument when a block is not a whole number of the pages that were asked for.
int32_t choose_page_tokens(const PolicyOptions& options, const KvBlockShape& block);

}  // namespace sluice
