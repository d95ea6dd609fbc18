// Checks the options by their rows and derives the page size.
#include "attention/policy_options.h"

#include "core/error.h"
#include "core/option_check.h"

namespace sluice {
namespace {

// Larger pages give coarser selections, smaller ones more scores and lists per token.
constexpr int32_t kDefaultPageTokens = 32;

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

}  // namespace sluice
