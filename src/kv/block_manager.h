// BlockManager: assigns the blocks of the pool, or of the host tier, to sequences.
//
// Used by engine/scheduler (match, begin, reserve, release) and engine/llm_engine (commit). It
// handles ids only and never accesses KV bytes. Every block is in exactly one state:
//
//            taken                sealed                 last holder leaves
//   blank -----------> held private ------> held findable -----------------> cached
//     ^                     |                     ^                            | |
//     |  last holder leaves |                     |         prefix hit         | |
//     +---------------------+                     +----------------------------+ |
//     +--------------------------------------------------------------------------+
//                        evicted, oldest first, when no blank is left
//
//   blank   holds nothing        held   has one or more holders (its reference count)
//   cached  has no holder, but keeps its KV and can be found by its tokens until it is evicted
// Blank and cached blocks are both *free*. With prefix caching off no block is ever findable.
// Two sequences that compute the same block at the same time keep one each; when they leave, only
// one of the two stays cached and the other becomes blank. Therefore a findable block's prefix is
// findable too. One exception: while a transfer alone holds a block, the blocks before it may be
// evicted; the block then stays cached, and is not found, until it is evicted. Thread rule: the
// engine's thread. A step allocates nothing, beyond the growth of a sequence's own block list.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "kv/block_lru.h"
#include "kv/prefix_index.h"
#include "kv/sequence_kv.h"

namespace sluice {

struct BlockManagerOptions {
  int32_t num_blocks = 0;
  int32_t block_tokens = 0;  // accepted by validate_block_tokens
  bool enable_prefix_caching = true;

  // Of the prefill policy (attention/policy.h), whose selections, and with them the KV of a prompt,
  // may depend on where the prompt ends. Blocks can be found, and hit, only in scopes that are
  // complete tail_tokens before that end; then a hit has the bits of the computed KV. 1 and 0: no
  // KV depends on the prompt's end, and blocks filled by decoding can be found, too.
  int32_t scope_tokens = 1;
  int32_t tail_tokens = 0;

  // Called when a block becomes blank: no sequence can read it any more, and it has not been taken
  // again. Debug builds poison it. Must not call back into the manager.
  std::function<void(BlockId)> on_discard = {};

  // Of models whose KV alone continues no text: whether a sequence can go on after the prefix with
  // this id (Prefix::id). Hits end at such prefixes alone. Empty: at any.
  std::function<bool(int64_t prefix_id)> resumes_after = {};
  // Called when a prefix becomes findable: its first block was sealed. `parent_id` is that of the
  // prefix one block shorter (Prefix::id), `tokens` are its last block's. Must not call back into
  // the manager.
  std::function<void(int64_t prefix_id, int64_t parent_id, std::span<const int32_t> tokens)>
      on_findable = {};
  // Called when a prefix cannot be found any more: its last block was evicted. Its id is not used
  // again. Must not call back into the manager.
  std::function<void(int64_t prefix_id)> on_forgotten = {};

  // For tests: a fixed seed (otherwise drawn per manager) and another hash.
  std::optional<uint64_t> hash_seed = {};
  BlockHasher hasher = xxh3_block_hash;
};

// The part of a prompt that is cached.
struct PrefixMatch {
  int64_t num_tokens = 0;       // a multiple of blocks and scopes, always less than the prompt
  int64_t num_free_blocks = 0;  // of the matched blocks, those without a holder: taking them uses
                                // up free blocks, taking the others does not
  int64_t num_kv_tokens = 0;    // whose KV is cached, whether or not a sequence can resume there
};

// For match_prefix and try_begin: a hit may have any length. Only blocks of prompts with the same
// salt are hits.
inline constexpr int64_t kAnyHit = std::numeric_limits<int64_t>::max();

// A cached block, and the ids of the prefixes that end with it and before it (Prefix::id): blocks
// continue each other where one's parent is the other's prefix.
struct CachedBlock {
  BlockId id;
  int64_t prefix_id = 0;
  int64_t parent_id = 0;
};

// A prefix that has a block in memory, and that block. Its parent may have none (see the head of
// this file).
struct FindablePrefix {
  int64_t id = 0;
  int64_t parent_id = 0;
  BlockId block;
};

struct PrefixCacheStats {
  int64_t num_prompt_tokens = 0;  // of all sequences begun
  int64_t num_hit_tokens = 0;     // of these, taken from the cache
  int64_t num_evicted_blocks = 0;
};

class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);

  // How much of a prompt is cached. At least one token is always left to compute, since the first
  // output needs logits: a prompt of exactly n cached blocks matches n - 1. At most
  // `max_hit_tokens` match. Changes nothing.
  PrefixMatch match_prefix(std::span<const int32_t> tokens, int64_t max_hit_tokens = kAnyHit,
                           CacheSalt salt = CacheSalt::kNone) const;

  // The number of a salt; kNone for an empty text.
  CacheSalt salt(std::string_view text) const { return index_.salt(text); }

  // How much of a prompt will be cached once the prefill of another one with the same salt is
  // committed: whole blocks and scopes of what both begin with. 0 also if this is not more than
  // `num_cached`, which is found without comparing everything before.
  int64_t match_prefill(std::span<const int32_t> tokens, int64_t num_cached,
                        std::span<const int32_t> other) const;

  // Gives `sequence` the cached blocks of its prompt and reserves blocks for `num_new_tokens` more.
  // All or nothing: false, with nothing changed, when there are not enough free blocks.
  // After a preemption `tokens` are the prompt and everything generated since. max_hit_tokens as in
  // match_prefix.
  // REQUIRES: the sequence is not begun; tokens is not empty.
  bool try_begin(SequenceKv& sequence, std::span<const int32_t> tokens, int64_t num_new_tokens,
                 int64_t max_hit_tokens = kAnyHit, CacheSalt salt = CacheSalt::kNone);

  // Reserves blocks for `num_new_tokens` after the sequence's valid tokens; blocks that are
  // reserved already count. All or nothing: false, with nothing changed, if there are not enough
  // free blocks. Called with 1 for a decode step.
  bool try_reserve(SequenceKv& sequence, int64_t num_new_tokens);

  // Gives back the reserved blocks without a valid token: drafts that were not accepted had them.
  void drop_reserved(SequenceKv& sequence);

  // Marks the next `num_new_tokens` of `all_tokens` as valid and makes blocks that became full
  // findable. `all_tokens` is the sequence from its first token; tokens after the committed ones
  // (the one just sampled) are not read.
  // Order: after the pass that computed their KV can no longer fail, or once it is enqueued on the
  // stream on which every later reader is enqueued as well.
  // REQUIRES: blocks for the tokens are reserved.
  void commit(SequenceKv& sequence, std::span<const int32_t> all_tokens, int64_t num_new_tokens);

  // Adds a holder that is no sequence, and removes it: a pin, or a transfer of the block's bytes.
  // `unhold` ends a pin. It counts as a use, so the block is evicted last; blocks of a prefix are
  // given back last to first, as by release. `end_transfer` ends a transfer. It is no use: the
  // block keeps the place in the order of eviction that its last sequence or pin gave it. REQUIRES
  // for hold: the block is not blank.
  void hold(BlockId id);
  void unhold(BlockId id);
  void end_transfer(BlockId id);
  // All such holds.
  int64_t num_other_holds() const { return num_other_holds_; }

  // Whether other sequences can find a block; then also the ids of its tokens.
  bool is_findable(BlockId id) const { return index_.contains(id); }
  std::span<const int32_t> tokens(BlockId id) const { return index_.tokens(id); }
  // The id of the prefix that ends with it (Prefix::id).
  int64_t prefix_id(BlockId id) const { return index_.prefix(id).id; }
  // The id of a salt's empty prefix: the parent of the first blocks of its prompts.
  int64_t root_id(CacheSalt salt) const { return index_.root(salt).id; }

  // The tokens of a prompt that may come from elsewhere instead of being computed: a multiple of
  // hit_granule_tokens, as what is found in the cache.
  int64_t max_hit_tokens(int64_t prompt_tokens) const {
    return num_usable_tokens(prompt_tokens) / hit_granule_tokens() * hit_granule_tokens();
  }
  // Whole blocks and whole scopes.
  int64_t hit_granule_tokens() const;
  // The tokens of a prompt whose blocks others can find, since no KV of them depends on its end.
  int64_t num_shareable_tokens(int64_t prompt_tokens) const;

  // Gives all blocks back, last to first, so that a prefix outlives its extensions in the cache.
  // The sequence may begin again afterwards. Computed but uncommitted KV is lost.
  // REQUIRES: the sequence is begun.
  void release(SequenceKv& sequence);

  int32_t num_blocks() const { return static_cast<int32_t>(num_holders_.size()); }
  int32_t block_tokens() const { return block_tokens_; }
  int32_t num_cached_blocks() const { return cached_.size(); }
  int32_t num_free_blocks() const {
    return static_cast<int32_t>(blank_.size()) + num_cached_blocks();
  }
  int32_t num_used_blocks() const { return num_blocks() - num_free_blocks(); }
  const PrefixCacheStats& stats() const { return stats_; }

  // The cached blocks, that which was released last first: blocks of a sequence follow each other
  // in order of position. Cost: O(cached), allocates.
  std::vector<CachedBlock> cached_blocks() const;

  // All prefixes that have a block, each once and after its parent. Cost: O(all blocks), allocates.
  std::vector<FindablePrefix> findable_prefixes() const;

  // For tests: aborts unless every block is in exactly one state, the reference counts are those of
  // `sequences` (all that are begun) and of hold(), each of these has consistent counts, and every
  // findable block's prefix is findable, with the exception above. Cost: O(all blocks), allocates.
  void check_invariants(std::span<const SequenceKv* const> sequences) const;

 private:
  template <typename Visit>
  void walk_cached_prefix(Prefix root, std::span<const int32_t> tokens, int64_t num_tokens,
                          Visit visit) const;
  int64_t num_usable_tokens(int64_t prompt_tokens) const;

  BlockId take_free();
  void take_findable(BlockId id);
  void seal_tail(SequenceKv& sequence, std::span<const int32_t> all_tokens);
  void enter(SequenceKv& sequence, std::span<const int32_t> tokens);
  void drop(BlockId id);
  void remove_hold(BlockId id);
  void remove_holder(BlockId id);
  void evict(BlockId id);
  void erase(BlockId id);
  void make_blank(BlockId id);
  void check_states() const;
  void check_prefixes() const;
  int32_t& holders(BlockId id) { return num_holders_[static_cast<size_t>(id.value)]; }
  int32_t holders(BlockId id) const { return num_holders_[static_cast<size_t>(id.value)]; }

  int32_t block_tokens_;
  bool enable_prefix_caching_;
  int64_t scope_tokens_;
  int64_t tail_tokens_;
  std::function<void(BlockId)> on_discard_;
  std::function<bool(int64_t)> resumes_after_;
  std::function<void(int64_t, int64_t, std::span<const int32_t>)> on_findable_;
  std::function<void(int64_t)> on_forgotten_;

  std::vector<int32_t> num_holders_;  // [num_blocks]: the reference counts
  std::vector<int32_t> num_holds_;    // [num_blocks]: of these, by hold()
  bool had_holds_ = false;            // there was one: the exception above may have come
  int64_t num_other_holds_ = 0;       // their sum
  std::vector<BlockId> blank_;        // a stack
  BlockLru cached_;
  PrefixIndex index_;  // findable blocks: some held, all cached
  PrefixCacheStats stats_;
};

}  // namespace sluice
