// Ranges and defaults of policy options.
#include "attention/policy_options.h"

#include "core/error.h"

namespace sluice {
namespace {

constexpr int32_t kDefaultPageTokens = 32;
constexpr int32_t kMaxTokens = 1 << 30;

void require_range(const char* name, const std::optional<int32_t>& value, int32_t low,
                   const char* remedy) {
  if (!value || (*value >= low && *value <= kMaxTokens)) return;
  fail(ErrorCode::kInvalidArgument, "{} is {}, but must be {} to {}; {}", name, *value, low,
       kMaxTokens, remedy);
}

}  // namespace

void validate(const PolicyOptions& options) {
  require_range("sparse_topk_tokens", options.topk_tokens, 1, "2048 is the default");
  require_range("sparse_sink_tokens", options.sink_tokens, 0, "0 keeps no first tokens");
  require_range("sparse_recent_tokens", options.recent_tokens, 0, "0 keeps the newest page alone");
  require_range("sparse_threshold_tokens", options.threshold_tokens, 0,
                "0 selects from the first token on");
  if (!options.page_tokens) return;
  const int32_t page_tokens = *options.page_tokens;
  if (page_tokens < kMinPageTokens || page_tokens > kMaxPageTokens ||
      page_tokens % kMinPageTokens != 0) {
    fail(ErrorCode::kInvalidArgument,
         "sparse_page_tokens is {}, but must be a multiple of {} from {} to {}", page_tokens,
         kMinPageTokens, kMinPageTokens, kMaxPageTokens);
  }
}

int32_t choose_page_tokens(const PolicyOptions& options, const KvBlockShape& block) {
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
