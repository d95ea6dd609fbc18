// Views of blocks as pages, and the limits of a block's size.
#include "kv/kv_layout.h"

#include "core/error.h"
#include "ops/attention/attention.h"

namespace sluice {

static_assert(kMinBlockTokens % kAttentionTile == 0 && kMaxBlockTokens % kAttentionTile == 0);

KvBlocksView as_pages(const KvBlocksView& blocks, int32_t page_tokens) {
  const int32_t pages_per_block = blocks.shape.block_tokens / page_tokens;
  SLUICE_CHECK(blocks.shape.block_tokens % page_tokens == 0 &&
                   blocks.stride_bytes == blocks.shape.block_bytes(),
               "blocks of {} tokens every {} bytes as pages of {}", blocks.shape.block_tokens,
               blocks.stride_bytes, page_tokens);
  KvBlocksView pages = blocks;
  pages.shape.block_tokens = page_tokens;
  pages.stride_bytes = pages.shape.block_bytes();
  pages.num_blocks = blocks.num_blocks * pages_per_block;
  return pages;
}

void validate_block_tokens(int64_t block_tokens) {
  const bool in_range = block_tokens >= kMinBlockTokens && block_tokens <= kMaxBlockTokens;
  if (in_range && block_tokens % kAttentionTile == 0) return;
  fail(ErrorCode::kInvalidArgument,
       "block_size is {}: a KV block holds {} to {} tokens, in multiples of {}; try {}",
       block_tokens, kMinBlockTokens, kMaxBlockTokens, kAttentionTile, kDefaultBlockTokens);
}

}  // namespace sluice
