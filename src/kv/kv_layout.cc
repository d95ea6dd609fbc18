#include "kv/kv_layout.h"

#include "core/error.h"
#include "ops/attention.h"

namespace sluice {

static_assert(kMinBlockTokens % kAttentionTile == 0 && kMaxBlockTokens % kAttentionTile == 0);

void validate_block_tokens(int64_t block_tokens) {
  const bool in_range = block_tokens >= kMinBlockTokens && block_tokens <= kMaxBlockTokens;
  if (in_range && block_tokens % kAttentionTile == 0) return;
  fail(ErrorCode::kInvalidArgument,
       "block_size is {}: a KV block holds {} to {} tokens, in multiples of {}; try {}",
       block_tokens, kMinBlockTokens, kMaxBlockTokens, kAttentionTile, kDefaultBlockTokens);
}

}  // namespace sluice
