// Counts of valid tokens, and the changes that BlockManager makes.
#include "kv/sequence_kv.h"

#include "core/error.h"
#include "kv/kv_layout.h"

namespace sluice {

int64_t SequenceKv::num_tokens() const {
  const int64_t num_sealed_tokens = static_cast<int64_t>(num_sealed_blocks_) * block_tokens_;
  const auto tail_index = static_cast<size_t>(num_sealed_blocks_);
  if (tail_index == blocks_.size()) return num_sealed_tokens;
  return num_sealed_tokens + blocks_[tail_index].num_valid_tokens;
}

void SequenceKv::begin(int32_t block_tokens, int64_t prefill_tokens, Prefix root) {
  block_tokens_ = block_tokens;
  prefill_tokens_ = prefill_tokens;
  sealed_prefix_ = root;
  blocks_.reserve(static_cast<size_t>(blocks_for_tokens(prefill_tokens, block_tokens)) + 1);
}

void SequenceKv::append_sealed(BlockId id, Prefix prefix) {
  blocks_.push_back({.id = id, .num_valid_tokens = block_tokens_});
  ++num_sealed_blocks_;
  num_cached_tokens_ += block_tokens_;
  sealed_prefix_ = prefix;
}

void SequenceKv::check_invariants() const {
  for (int32_t i = 0; i < std::ssize(blocks_); ++i) {
    const SequenceBlock& block = blocks_[static_cast<size_t>(i)];
    const bool full = block.num_valid_tokens == block_tokens_;
    SLUICE_CHECK(full == (i < num_sealed_blocks_), "block {} has {} tokens, {} are sealed", i,
                 block.num_valid_tokens, num_sealed_blocks_);
    const bool may_be_partial = i == num_sealed_blocks_;
    SLUICE_CHECK(full || may_be_partial || block.num_valid_tokens == 0, "block {} has {} tokens", i,
                 block.num_valid_tokens);
  }
}

void SequenceKv::reset() {
  blocks_.clear();  // keeps the capacity for the next begin after a preemption
  num_sealed_blocks_ = 0;
  prefill_tokens_ = 0;
  num_cached_tokens_ = 0;
}

}  // namespace sluice
