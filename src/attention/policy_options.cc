// Checks the options by their rows, and derives page sizes and shares.
#include "attention/policy_options.h"

#include <algorithm>
#include <bit>
#include <string>

#include "attention/policy.h"
#include "core/error.h"
#include "core/option_check.h"

namespace sluice {
namespace {

// Larger pages give coarser selections, smaller ones more scores and lists per token.
constexpr int32_t kDefaultPageTokens = 32;

constexpr int32_t kDefaultSegmentTokens = 4096;

}  // namespace

void validate(const SparseOptions& options) { check_options(kSparseOptionRows, options); }

int32_t choose_page_tokens(const SparseOptions& options, const KvBlockShape& block) {
  if (!options.page_tokens) {
    return block.block_tokens % kDefaultPageTokens == 0 ? kDefaultPageTokens : kMinPageTokens;
  }
  if (block.block_tokens % *options.page_tokens != 0) {
    fail(ErrorCode::kInvalidArgument,
         "sparse_page_tokens is {}, but a KV block of {} tokens is no whole number of such pages; "
         "take a page size that divides block_size, or a multiple of it as block_size",
         *options.page_tokens, block.block_tokens);
  }
  return *options.page_tokens;
}

int32_t segment_tokens_of(const SparseOptions& options) {
  const int32_t tokens = options.segment_tokens.value_or(kDefaultSegmentTokens);
  return tokens == 0 ? kPromptScopeTokens : tokens;
}

void require_one_of(const SparseOptions& options, std::string_view policy,
                    std::span<const std::string_view> names) {
  std::string given;
  int num_given = 0;
  for (const auto& row : kSparseOptionRows) {
    if (!row.get(options) || std::ranges::find(names, row.facts.name) == names.end()) continue;
    given += (num_given++ > 0 ? " and " : "") + std::string(row.facts.name);
  }
  if (num_given <= 1) return;
  fail(ErrorCode::kInvalidArgument,
       "{} are given, but sparse policy '{}' chooses by one of them; leave out the others", given,
       policy);
}

int32_t power_of_two(std::string_view name, const std::optional<int32_t>& value,
                     int32_t when_unset) {
  const int32_t result = value.value_or(when_unset);
  if (result <= 0 || !std::has_single_bit(static_cast<uint32_t>(result))) {
    fail(ErrorCode::kInvalidArgument, "{} is {}, which is no power of two; take one, such as {}",
         name, result, when_unset);
  }
  return result;
}

uint32_t mass_share(double share) { return static_cast<uint32_t>(share * kMassOne); }

TileRule coverage_choice(const SparseOptions& options, double when_unset) {
  validate(options);
  return {.choice = TileChoice::kCoverage,
          .share = mass_share(options.coverage.value_or(when_unset))};
}

}  // namespace sluice
