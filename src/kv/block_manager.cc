// The state changes of blocks: taking, sealing, dropping, evicting; and the checks of the states.
#include "kv/block_manager.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "core/error.h"
#include "kv/kv_layout.h"

namespace sluice {

namespace {

// Checks the options before the first member is sized by them.
const BlockManagerOptions& checked(const BlockManagerOptions& options) {
  SLUICE_CHECK(options.num_blocks > 0 && options.block_tokens > 0, "{} blocks of {} tokens",
               options.num_blocks, options.block_tokens);
  const int64_t num_tokens = static_cast<int64_t>(options.num_blocks) * options.block_tokens;
  SLUICE_CHECK(num_tokens <= std::numeric_limits<int32_t>::max(),
               "{} blocks of {} tokens, but KV rows are 32-bit", options.num_blocks,
               options.block_tokens);
  SLUICE_CHECK(options.scope_tokens > 0 && options.tail_tokens >= 0, "scope {}, tail {}",
               options.scope_tokens, options.tail_tokens);
  return options;
}

}  // namespace

BlockManager::BlockManager(const BlockManagerOptions& options)
    : block_tokens_(checked(options).block_tokens),
      enable_prefix_caching_(options.enable_prefix_caching),
      scope_tokens_(options.scope_tokens),
      tail_tokens_(options.tail_tokens),
      on_discard_(options.on_discard),
      resumes_after_(options.resumes_after),
      on_findable_(options.on_findable),
      on_forgotten_(options.on_forgotten),
      num_holders_(static_cast<size_t>(options.num_blocks)),
      num_holds_(static_cast<size_t>(options.num_blocks)),
      cached_(options.num_blocks),
      index_(options.num_blocks, options.block_tokens,
             options.hash_seed ? *options.hash_seed : draw_hash_seed(), options.hasher) {
  blank_.reserve(static_cast<size_t>(options.num_blocks));
  for (int32_t i = options.num_blocks; i > 0; --i) blank_.push_back(BlockId(i - 1));
}

// Tokens of a prompt whose KV does not depend on where the prompt ends: those of the scopes that
// are complete before its tail.
int64_t BlockManager::num_shareable_tokens(int64_t prompt_tokens) const {
  if (scope_tokens_ == 1 && tail_tokens_ == 0) return std::numeric_limits<int64_t>::max();
  return std::max<int64_t>(prompt_tokens - tail_tokens_, 0) / scope_tokens_ * scope_tokens_;
}

// Tokens of a prompt that it may take from the cache. At least one is left to compute.
int64_t BlockManager::num_usable_tokens(int64_t prompt_tokens) const {
  return std::min(prompt_tokens - 1, num_shareable_tokens(prompt_tokens));
}

// A pass must begin at a scope, so only whole scopes are taken.
int64_t BlockManager::hit_granule_tokens() const {
  return std::lcm(int64_t{block_tokens_}, scope_tokens_);
}

// Calls visit(id) for the findable blocks of the first `num_tokens` tokens after `root`, in order.
template <typename Visit>
void BlockManager::walk_cached_prefix(Prefix root, std::span<const int32_t> tokens,
                                      int64_t num_tokens, Visit visit) const {
  if (!enable_prefix_caching_) return;
  const auto block_tokens = static_cast<size_t>(block_tokens_);
  const auto num_blocks = static_cast<size_t>(num_tokens / block_tokens_);
  Prefix prefix = root;
  for (size_t i = 0; i < num_blocks; ++i) {
    const BlockId id = index_.find(prefix, tokens.subspan(i * block_tokens, block_tokens));
    if (!id.valid()) return;
    prefix = index_.prefix(id);
    visit(id);
  }
}

PrefixMatch BlockManager::match_prefix(std::span<const int32_t> tokens, int64_t max_hit_tokens,
                                       CacheSalt salt) const {
  PrefixMatch match, found;
  if (tokens.empty()) return match;
  const int64_t num_usable = std::min(num_usable_tokens(std::ssize(tokens)), max_hit_tokens);
  const int64_t granule = hit_granule_tokens();
  walk_cached_prefix(index_.root(salt), tokens, num_usable, [&](BlockId id) {
    found.num_tokens += block_tokens_;
    found.num_free_blocks += holders(id) == 0 ? 1 : 0;
    if (found.num_tokens % granule != 0) return;
    found.num_kv_tokens = found.num_tokens;
    if (!resumes_after_ || resumes_after_(index_.prefix(id).id)) match = found;
  });
  match.num_kv_tokens = found.num_kv_tokens;
  return match;
}

int64_t BlockManager::match_prefill(std::span<const int32_t> tokens, int64_t num_cached,
                                    std::span<const int32_t> other) const {
  if (!enable_prefix_caching_ || tokens.empty()) return 0;
  const int64_t granule = hit_granule_tokens();
  const int64_t num_usable = std::min({num_usable_tokens(std::ssize(tokens)),
                                       num_shareable_tokens(std::ssize(other)), std::ssize(other)});
  if (num_cached + granule > num_usable) return 0;
  // Most prompts differ in the next block, if not before.
  const auto next = tokens.subspan(static_cast<size_t>(num_cached), static_cast<size_t>(granule));
  if (!std::ranges::equal(next, other.subspan(static_cast<size_t>(num_cached), next.size()))) {
    return 0;
  }
  const auto usable = tokens.first(static_cast<size_t>(num_usable));
  const auto differ = std::ranges::mismatch(usable, other).in1;
  const int64_t num_tokens = (differ - usable.begin()) / granule * granule;
  return num_tokens > num_cached ? num_tokens : 0;
}

bool BlockManager::try_begin(SequenceKv& sequence, std::span<const int32_t> tokens,
                             int64_t num_new_tokens, int64_t max_hit_tokens, CacheSalt salt) {
  SLUICE_CHECK(!sequence.begun(), "the sequence has begun already");
  SLUICE_CHECK(!tokens.empty() && num_new_tokens >= 0, "{} tokens and {} new ones", tokens.size(),
               num_new_tokens);
  const PrefixMatch match = match_prefix(tokens, max_hit_tokens, salt);
  const int64_t num_new_blocks = blocks_for_tokens(num_new_tokens, block_tokens_);
  if (match.num_free_blocks + num_new_blocks > num_free_blocks()) return false;

  const Prefix root = index_.root(salt);
  sequence.begin(block_tokens_, std::ssize(tokens), root);
  // All hits are taken first, so that taking the new blocks cannot evict them.
  walk_cached_prefix(root, tokens, match.num_tokens, [&](BlockId id) {
    take_findable(id);
    sequence.append_sealed(id, index_.prefix(id));
  });
  for (int64_t i = 0; i < num_new_blocks; ++i) sequence.append_reserved(take_free());
  stats_.num_prompt_tokens += std::ssize(tokens);
  stats_.num_hit_tokens += match.num_tokens;
  return true;
}

bool BlockManager::try_reserve(SequenceKv& sequence, int64_t num_new_tokens) {
  SLUICE_CHECK(sequence.begun() && num_new_tokens >= 0, "{} new tokens", num_new_tokens);
  const int64_t num_needed_blocks =
      blocks_for_tokens(sequence.num_tokens() + num_new_tokens, block_tokens_) -
      std::ssize(sequence.blocks());
  if (num_needed_blocks > num_free_blocks()) return false;
  for (int64_t i = 0; i < num_needed_blocks; ++i) sequence.append_reserved(take_free());
  return true;
}

void BlockManager::drop_reserved(SequenceKv& sequence) {
  while (!sequence.blocks_.empty() && sequence.blocks_.back().num_valid_tokens == 0) {
    drop(sequence.blocks_.back().id);
    sequence.blocks_.pop_back();
  }
}

void BlockManager::commit(SequenceKv& sequence, std::span<const int32_t> all_tokens,
                          int64_t num_new_tokens) {
  const int64_t num_tokens = sequence.num_tokens() + num_new_tokens;
  SLUICE_CHECK(sequence.begun() && num_new_tokens >= 0 && num_tokens <= std::ssize(all_tokens),
               "{} tokens after {}, of {}", num_new_tokens, sequence.num_tokens(),
               all_tokens.size());
  SLUICE_CHECK(num_tokens <= sequence.num_reserved_tokens(), "{} tokens, {} reserved", num_tokens,
               sequence.num_reserved_tokens());
  while (num_new_tokens > 0) {
    SequenceBlock& tail = sequence.tail();
    const int64_t room = block_tokens_ - tail.num_valid_tokens;
    const int64_t num_added = std::min(room, num_new_tokens);
    tail.num_valid_tokens += static_cast<int32_t>(num_added);
    num_new_tokens -= num_added;
    if (num_added == room) seal_tail(sequence, all_tokens);
  }
}

// Seals the full tail: enters it into the index, so that other sequences can find it, unless its KV
// depends on the prompt's end. The blocks after such a block are not entered either.
void BlockManager::seal_tail(SequenceKv& sequence, std::span<const int32_t> all_tokens) {
  const int64_t end = (int64_t{sequence.num_sealed_blocks_} + 1) * block_tokens_;
  if (enable_prefix_caching_ && end <= num_shareable_tokens(sequence.prefill_tokens())) {
    const auto block_tokens = static_cast<size_t>(block_tokens_);
    const size_t first = static_cast<size_t>(sequence.num_sealed_blocks_) * block_tokens;
    enter(sequence, all_tokens.subspan(first, block_tokens));
  }
  ++sequence.num_sealed_blocks_;
}

// The prefix is new unless a twin has it.
void BlockManager::enter(SequenceKv& sequence, std::span<const int32_t> tokens) {
  const BlockId id = sequence.tail().id;
  const int64_t parent_id = sequence.sealed_prefix_.id;
  sequence.sealed_prefix_ = index_.insert(id, sequence.sealed_prefix_, tokens);
  if (on_findable_ && !index_.twin(id).valid()) {
    on_findable_(sequence.sealed_prefix_.id, parent_id, tokens);
  }
}

void BlockManager::release(SequenceKv& sequence) {
  SLUICE_CHECK(sequence.begun(), "the sequence holds nothing: released twice or never begun");
  for (size_t i = sequence.blocks_.size(); i > 0; --i) drop(sequence.blocks_[i - 1].id);
  sequence.reset();
}

// A sequence releases its blocks last to first, so the newest come in order of position.
std::vector<CachedBlock> BlockManager::cached_blocks() const {
  std::vector<CachedBlock> blocks;
  blocks.reserve(static_cast<size_t>(cached_.size()));
  for (BlockId id = cached_.newest(); id.valid(); id = cached_.older(id)) {
    blocks.push_back(
        {.id = id, .prefix_id = index_.prefix(id).id, .parent_id = index_.parent_id(id)});
  }
  return blocks;
}

// Ids are monotonic, and a prefix is entered after its parent. Twins share an id.
std::vector<FindablePrefix> BlockManager::findable_prefixes() const {
  std::vector<FindablePrefix> prefixes;
  prefixes.reserve(static_cast<size_t>(index_.size()));
  for (int32_t i = 0; i < num_blocks(); ++i) {
    const BlockId block(i);
    if (!index_.contains(block)) continue;
    prefixes.push_back(
        {.id = index_.prefix(block).id, .parent_id = index_.parent_id(block), .block = block});
  }
  std::ranges::sort(prefixes, {}, &FindablePrefix::id);
  const auto is_same = [](const FindablePrefix& a, const FindablePrefix& b) {
    return a.id == b.id;
  };
  prefixes.erase(std::unique(prefixes.begin(), prefixes.end(), is_same), prefixes.end());
  return prefixes;
}

// A block for new tokens, with one holder: a blank one, else the oldest cached. REQUIRES: a free
// one.
BlockId BlockManager::take_free() {
  if (blank_.empty()) {
    evict(cached_.oldest());
    ++stats_.num_evicted_blocks;
  }
  const BlockId id = blank_.back();
  blank_.pop_back();
  holders(id) = 1;
  return id;
}

// Adds a holder to a block that was found; a cached block becomes held.
void BlockManager::take_findable(BlockId id) {
  if (holders(id) == 0) cached_.remove(id);
  ++holders(id);
}

void BlockManager::hold(BlockId id) {
  SLUICE_CHECK(holders(id) > 0 || cached_.contains(id), "block {} is blank", id.value);
  take_findable(id);
  ++num_holds_[static_cast<size_t>(id.value)];
  ++num_other_holds_;
  had_holds_ = true;
}

void BlockManager::unhold(BlockId id) {
  remove_hold(id);
  drop(id);
}

void BlockManager::end_transfer(BlockId id) {
  remove_hold(id);
  remove_holder(id);
}

void BlockManager::remove_hold(BlockId id) {
  SLUICE_CHECK(num_holds_[static_cast<size_t>(id.value)] > 0, "block {} is not held", id.value);
  --num_holds_[static_cast<size_t>(id.value)];
  --num_other_holds_;
}

// Removes one holder, a sequence or a pin, which has used the block until now.
void BlockManager::drop(BlockId id) {
  SLUICE_CHECK(holders(id) > 0, "block {} has no holder", id.value);
  cached_.use(id);
  remove_holder(id);
}

// Without holders a block becomes cached, or blank if it is not findable or has a held twin. Of two
// unheld twins the one used last stays cached, since it must outlive its extensions, which were
// dropped just before it.
void BlockManager::remove_holder(BlockId id) {
  if (--holders(id) > 0) return;
  if (!index_.contains(id)) return make_blank(id);

  const BlockId twin = index_.twin(id);
  if (twin.valid() && (holders(twin) > 0 || cached_.is_newer(twin, id))) {
    erase(id);
    return make_blank(id);
  }
  if (twin.valid()) evict(twin);
  cached_.insert(id);
}

// A cached block becomes blank: it cannot be found any more.
void BlockManager::evict(BlockId id) {
  cached_.remove(id);
  erase(id);
  make_blank(id);
}

// A twin keeps the prefix.
void BlockManager::erase(BlockId id) {
  const bool is_last = !index_.twin(id).valid();
  const int64_t prefix_id = index_.prefix(id).id;
  index_.erase(id);
  if (is_last && on_forgotten_) on_forgotten_(prefix_id);
}

void BlockManager::make_blank(BlockId id) {
  if (on_discard_) on_discard_(id);
  blank_.push_back(id);
}

void BlockManager::check_invariants(std::span<const SequenceKv* const> sequences) const {
  std::vector<int32_t> num_found = num_holds_;
  for (const SequenceKv* sequence : sequences) {
    sequence->check_invariants();
    for (const SequenceBlock& block : sequence->blocks()) {
      ++num_found[static_cast<size_t>(block.id.value)];
    }
  }
  for (int32_t i = 0; i < num_blocks(); ++i) {
    const int32_t found = num_found[static_cast<size_t>(i)];
    SLUICE_CHECK(holders(BlockId(i)) == found, "block {} counts {} holders and has {}", i,
                 holders(BlockId(i)), found);
  }
  check_states();
  check_prefixes();
}

// Checks that every block is in exactly one of the states blank, cached and held, that no blank
// block is findable, and that every cached one is.
void BlockManager::check_states() const {
  std::vector<bool> is_blank(num_holders_.size());
  for (BlockId id : blank_) {
    SLUICE_CHECK(!is_blank[static_cast<size_t>(id.value)], "block {} is blank twice", id.value);
    is_blank[static_cast<size_t>(id.value)] = true;
  }
  int32_t num_cached = 0;
  for (int32_t i = 0; i < num_blocks(); ++i) {
    const BlockId id(i);
    const bool blank = is_blank[static_cast<size_t>(i)];
    const bool cached = cached_.contains(id);
    const bool held = holders(id) > 0;
    SLUICE_CHECK(blank + cached + held == 1, "block {}: blank {} cached {} held {}", i, blank,
                 cached, held);
    SLUICE_CHECK(!(blank && index_.contains(id)), "block {} is blank but findable", i);
    SLUICE_CHECK(!cached || index_.contains(id), "block {} is cached but not findable", i);
    num_cached += cached;
  }
  SLUICE_CHECK(num_cached == cached_.size(), "{} cached, the list says {}", num_cached,
               cached_.size());
}

// Checks that the prefix of every findable block is findable, but for blocks that no sequence holds
// once a transfer may have outlived those that did.
void BlockManager::check_prefixes() const {
  std::unordered_set<int64_t> findable;
  for (int32_t i = 0; i < num_blocks(); ++i) {
    if (index_.contains(BlockId(i))) findable.insert(index_.prefix(BlockId(i)).id);
  }
  for (int32_t i = 0; i < num_blocks(); ++i) {
    if (!index_.contains(BlockId(i))) continue;
    if (had_holds_ && holders(BlockId(i)) == num_holds_[static_cast<size_t>(i)]) continue;
    const int64_t parent = index_.parent_id(BlockId(i));
    SLUICE_CHECK(parent <= 0 || findable.contains(parent), "block {} lost its prefix", i);
  }
}

}  // namespace sluice
