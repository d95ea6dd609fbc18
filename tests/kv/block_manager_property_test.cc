// BlockManager against a naive model under random operations.
//
// The model keeps whole token prefixes in a map and free blocks in plain lists. A simulated memory
// accompanies it: a "kernel" writes, for each position, a number that identifies all tokens up to
// it, and discarded blocks are wiped. Every valid token of every sequence must hold the number of
// its own prefix at all times: a wrong hit, an early reuse or a write to a shared block shows as a
// wrong number. Failures print the seed.
#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv/block_manager.h"
#include "kv/kv_layout.h"
#include "kv/token_lists.h"
#include "support/sanitizer.h"

namespace sluice {
namespace {

constexpr uint64_t kWiped = 0;

// The model. Blocks are plain ints here.
struct Model {
  explicit Model(const BlockManagerOptions& options)
      : block_tokens(options.block_tokens),
        scope_tokens(options.scope_tokens),
        tail_tokens(options.tail_tokens),
        caching(options.enable_prefix_caching) {
    for (int i = 0; i < options.num_blocks; ++i) blank.insert(i);
  }

  // A salt is one more token before all others.
  static Tokens key(int salt, const Tokens& tokens, int64_t num_tokens) {
    Tokens key = {salt};
    key.insert(key.end(), tokens.begin(), tokens.begin() + num_tokens);
    return key;
  }

  // The cached blocks that a prompt may use, in order.
  std::vector<int> match(int salt, const Tokens& tokens) const {
    std::vector<int> blocks;
    for (int64_t end = block_tokens; end < std::ssize(tokens); end += block_tokens) {
      const auto found = findable.find(key(salt, tokens, end));
      if (found == findable.end()) break;
      blocks.push_back(found->second.front());
    }
    while (!blocks.empty() &&
           !begins_a_scope(std::ssize(blocks) * block_tokens, std::ssize(tokens))) {
      blocks.pop_back();
    }
    return blocks;
  }

  // Whether the first `end` tokens are scopes that are complete before the prompt's tail.
  bool begins_a_scope(int64_t end, int64_t prompt) const {
    return end % scope_tokens == 0 && is_complete(end, prompt);
  }
  bool is_complete(int64_t end, int64_t prompt) const {
    if (scope_tokens == 1 && tail_tokens == 0) return true;
    while (end % scope_tokens != 0) ++end;
    return end + tail_tokens <= prompt;
  }

  int64_t num_free() const { return std::ssize(blank) + std::ssize(cached); }

  void take_hit(int block) {
    if (holders[block]++ == 0) cached.remove(block);
  }

  // Checks that `block` may be handed out now: a blank one, or the oldest cached one when none is
  // blank.
  void take_new(int block) {
    if (blank.empty()) {
      ASSERT_EQ(block, cached.front()) << "not the least recently freed";
      forget(block);
    }
    ASSERT_EQ(blank.erase(block), 1u) << "block " << block << " was not free";
    holders[block] = 1;
  }

  void seal(int block, const Tokens& prefix, int64_t prompt) {
    if (!caching || !is_complete(std::ssize(prefix) - 1, prompt)) return;  // 1: the salt
    auto& blocks = findable[prefix];
    blocks.insert(blocks.begin() + (blocks.empty() ? 0 : 1), block);
    prefix_of[block] = prefix;
  }

  void drop(int block) {
    if (--holders[block] > 0) return;
    holders.erase(block);
    if (!prefix_of.contains(block)) {
      make_blank(block);
      return;
    }
    const std::vector<int>& twins = findable[prefix_of[block]];
    const auto twin = std::ranges::find_if(twins, [&](int other) { return other != block; });
    if (twin != twins.end() && holders.contains(*twin)) return forget(block);
    if (twin != twins.end()) forget(*twin);
    cached.push_back(block);
  }

  void forget(int block) {
    cached.remove(block);
    auto found = findable.find(prefix_of[block]);
    std::erase(found->second, block);
    if (found->second.empty()) findable.erase(found);
    prefix_of.erase(block);
    make_blank(block);
  }

  void make_blank(int block) {
    discarded.push_back(block);
    blank.insert(block);
  }

  int64_t block_tokens;
  int64_t scope_tokens;
  int64_t tail_tokens;
  bool caching;
  std::set<int> blank;
  std::list<int> cached;  // oldest first
  std::map<int, int> holders;
  std::map<Tokens, std::vector<int>> findable;  // key -> blocks; a hit takes the first
  std::map<int, Tokens> prefix_of;
  std::vector<int> discarded;
};

struct Live {
  int salt = 0;  // 0: none
  SequenceKv kv;
  Tokens tokens;
};

class Harness {
 public:
  Harness(BlockManagerOptions options, uint64_t seed, int num_salts)
      : random_(seed),
        num_salts_(num_salts),
        memory_(static_cast<size_t>(options.num_blocks * options.block_tokens), kWiped),
        model_(options),
        manager_(watched(options)) {}

  void step() {
    const int action = pick(100);
    if (live_.empty() || (action < 25 && live_.size() < 6)) {
      begin(new_live());
    } else if (action < 75) {
      extend(random_live());
    } else if (action < 85) {
      preempt();
    } else {
      finish();
    }
  }

  void check() {
    ASSERT_EQ(discarded_, model_.discarded);
    discarded_.clear();
    model_.discarded.clear();
    ASSERT_EQ(manager_.num_free_blocks(), model_.num_free());
    ASSERT_EQ(manager_.num_cached_blocks(), std::ssize(model_.cached));
    ASSERT_EQ(manager_.num_used_blocks(), std::ssize(model_.holders));
    std::vector<const SequenceKv*> sequences;
    for (const auto& live : live_) {
      sequences.push_back(&live->kv);
      check_sequence(*live);
    }
    manager_.check_invariants(sequences);
  }

  int64_t num_hit_tokens() const { return manager_.stats().num_hit_tokens; }
  int64_t num_evicted_blocks() const { return manager_.stats().num_evicted_blocks; }

 private:
  BlockManagerOptions watched(BlockManagerOptions options) {
    options.on_discard = [this](BlockId id) {
      discarded_.push_back(id.value);
      const auto first = memory_.begin() + int64_t{id.value} * model_.block_tokens;
      std::fill(first, first + model_.block_tokens, kWiped);
    };
    return options;
  }

  int pick(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  Live& random_live() { return *live_[static_cast<size_t>(pick(static_cast<int>(live_.size())))]; }

  std::unique_ptr<Live> new_live() {
    auto live = std::make_unique<Live>();
    live->tokens = random_prompt();
    live->salt = num_salts_ > 1 ? pick(num_salts_) : 0;
    return live;
  }
  CacheSalt salt_of(const Live& live) const {
    return manager_.salt(live.salt == 0 ? "" : std::to_string(live.salt));
  }

  // Texts of two letters that often share a prefix with an earlier one, so that hits of every
  // length occur.
  Tokens random_prompt() {
    Tokens tokens;
    if (!history_.empty() && pick(4) > 0) {
      tokens = history_[static_cast<size_t>(pick(static_cast<int>(history_.size())))];
      if (pick(2) == 0) tokens.resize(static_cast<size_t>(pick(static_cast<int>(tokens.size()))));
    }
    const int num_more = pick(3 * static_cast<int>(model_.block_tokens)) + (tokens.empty() ? 1 : 0);
    for (int i = 0; i < num_more; ++i) tokens.push_back(pick(2));
    return tokens;
  }

  // The number that identifies the first `length` tokens.
  uint64_t content(const Tokens& tokens, int64_t length) {
    uint64_t node = 1;
    for (int64_t i = 0; i < length; ++i) {
      const auto key = std::pair(node, tokens[static_cast<size_t>(i)]);
      node = nodes_.try_emplace(key, nodes_.size() + 2).first->second;
    }
    return node;
  }

  void begin(std::unique_ptr<Live> live) {
    const std::vector<int> hits = model_.match(live->salt, live->tokens);
    const int64_t num_hit_tokens = std::ssize(hits) * model_.block_tokens;
    const int64_t num_free_hits =
        std::ranges::count_if(hits, [&](int block) { return !model_.holders.contains(block); });
    const PrefixMatch match = manager_.match_prefix(live->tokens, kAnyHit, salt_of(*live));
    ASSERT_EQ(match.num_tokens, num_hit_tokens);
    ASSERT_EQ(match.num_free_blocks, num_free_hits);
    ASSERT_LT(match.num_tokens, std::ssize(live->tokens));

    const int64_t num_new = pick(static_cast<int>(std::ssize(live->tokens) - num_hit_tokens) + 1);
    const int64_t num_new_blocks = blocks_for_tokens(num_new, manager_.block_tokens());
    const bool fits = num_free_hits + num_new_blocks <= model_.num_free();
    ASSERT_EQ(manager_.try_begin(live->kv, live->tokens, num_new, kAnyHit, salt_of(*live)), fits);
    ASSERT_EQ(live->kv.begun(), fits);
    if (!fits) return;
    for (int block : hits) model_.take_hit(block);
    ASSERT_EQ(std::ssize(live->kv.blocks()), std::ssize(hits) + num_new_blocks);
    for (size_t i = 0; i < hits.size(); ++i) ASSERT_EQ(live->kv.blocks()[i].id.value, hits[i]);
    take_new_blocks(live->kv, hits.size());
    ASSERT_EQ(live->kv.num_cached_tokens(), num_hit_tokens);
    history_.push_back(live->tokens);
    if (history_.size() > 12) history_.erase(history_.begin());
    live_.push_back(std::move(live));
  }

  void take_new_blocks(const SequenceKv& kv, size_t first) {
    for (size_t i = first; i < kv.blocks().size(); ++i) {
      ASSERT_NO_FATAL_FAILURE(model_.take_new(kv.blocks()[i].id.value));
    }
  }

  // A prefill chunk or, when the tokens run out, a decode step; sometimes computed only in part.
  void extend(Live& live) {
    const int64_t num_left = std::ssize(live.tokens) - live.kv.num_tokens();
    const int64_t num_new = num_left > 1 ? 1 + pick(static_cast<int>(num_left)) : 1;
    if (num_left == 0) live.tokens.push_back(pick(2));
    const size_t num_before = live.kv.blocks().size();
    const int64_t num_needed =
        blocks_for_tokens(live.kv.num_tokens() + num_new, manager_.block_tokens()) -
        static_cast<int64_t>(num_before);
    const bool fits = num_needed <= model_.num_free();
    ASSERT_EQ(manager_.try_reserve(live.kv, num_new), fits);
    ASSERT_EQ(std::ssize(live.kv.blocks()),
              static_cast<int64_t>(num_before) + (fits ? std::max<int64_t>(num_needed, 0) : 0));
    if (!fits) return;
    take_new_blocks(live.kv, num_before);
    compute(live, pick(10) == 0 ? num_new / 2 : num_new);
  }

  // Where a pass writes the KV of the token at `position`, which is not valid yet.
  size_t row_of(const SequenceKv& kv, int64_t position) const {
    const int64_t block_tokens = manager_.block_tokens();
    const SequenceBlock& block = kv.blocks()[static_cast<size_t>(position / block_tokens)];
    EXPECT_GE(position % block_tokens, block.num_valid_tokens) << "valid KV is written again";
    return static_cast<size_t>(block.id.value * block_tokens + position % block_tokens);
  }

  void compute(Live& live, int64_t num_new) {
    const int64_t begin = live.kv.num_tokens();
    for (int64_t position = begin; position < begin + num_new; ++position) {
      memory_[row_of(live.kv, position)] = content(live.tokens, position + 1);
    }
    manager_.commit(live.kv, live.tokens, num_new);
    for (int64_t end = begin + 1; end <= begin + num_new; ++end) {
      if (end % model_.block_tokens != 0) continue;
      const auto index = static_cast<size_t>(end / model_.block_tokens - 1);
      model_.seal(live.kv.blocks()[index].id.value, Model::key(live.salt, live.tokens, end),
                  live.kv.prefill_tokens());
    }
  }

  std::unique_ptr<Live> release() {
    const auto which = live_.begin() + pick(static_cast<int>(live_.size()));
    std::unique_ptr<Live> live = std::move(*which);
    live_.erase(which);
    for (size_t i = live->kv.blocks().size(); i > 0; --i) {
      model_.drop(live->kv.blocks()[i - 1].id.value);
    }
    manager_.release(live->kv);
    return live;
  }

  void preempt() { begin(release()); }

  void finish() {
    history_.push_back(release()->tokens);
    if (history_.size() > 12) history_.erase(history_.begin());
  }

  void check_sequence(const Live& live) {
    int64_t position = 0;
    uint64_t node = 1;
    for (const SequenceBlock& block : live.kv.blocks()) {
      for (int32_t i = 0; i < block.num_valid_tokens; ++i, ++position) {
        node = nodes_.at({node, live.tokens[static_cast<size_t>(position)]});
        const int64_t slot = block.id.value * model_.block_tokens + i;
        ASSERT_EQ(memory_[static_cast<size_t>(slot)], node) << "position " << position;
      }
    }
    ASSERT_EQ(position, live.kv.num_tokens());
  }

  std::mt19937_64 random_;
  int num_salts_;
  std::vector<uint64_t> memory_;
  std::vector<int> discarded_;
  std::map<std::pair<uint64_t, int32_t>, uint64_t> nodes_;
  std::vector<Tokens> history_;
  Model model_;
  BlockManager manager_;
  std::vector<std::unique_ptr<Live>> live_;
};

uint64_t constant_hash(uint64_t, std::span<const int32_t>) { return 5; }
uint64_t two_bit_hash(uint64_t parent, std::span<const int32_t> tokens) {
  return xxh3_block_hash(parent, tokens) & 3;
}

void run(const BlockManagerOptions& options, uint64_t seed, int num_operations, int num_salts = 1) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(options.num_blocks) +
               " blocks of " + std::to_string(options.block_tokens));
  Harness harness(options, seed, num_salts);
  for (int i = 0; i < num_operations; ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    harness.step();
    if (!testing::Test::HasFatalFailure()) harness.check();
    if (::testing::Test::HasFatalFailure()) return;
  }
  const bool caching = options.enable_prefix_caching;
  if (caching && options.num_blocks > 3) {  // a run without hits would prove little
    EXPECT_GT(harness.num_hit_tokens(), 0);
    EXPECT_GT(harness.num_evicted_blocks(), 0);
  }
  EXPECT_TRUE(caching || harness.num_hit_tokens() == 0);
}

TEST(BlockManagerProperty, AgreesWithTheModel) {
  uint64_t seed = 1;
  for (const int32_t num_blocks : {1, 3, 8, 24}) {
    for (const int32_t block_tokens : {1, 2, 5}) {
      for (const bool caching : {true, false}) {
        run({.num_blocks = num_blocks,
             .block_tokens = block_tokens,
             .enable_prefix_caching = caching,
             .hash_seed = seed},
            seed, 2000);
        ++seed;
      }
    }
  }
}

TEST(BlockManagerProperty, AgreesWithTheModelOfScopes) {
  uint64_t seed = 50;
  using Lengths = std::pair<int32_t, int32_t>;
  for (const auto& [scope_tokens, tail_tokens] :
       {Lengths{4, 0}, Lengths{6, 0}, Lengths{1, 3}, Lengths{4, 3}}) {
    for (const int32_t num_blocks : {8, 24}) {
      run({.num_blocks = num_blocks,
           .block_tokens = 2,
           .scope_tokens = scope_tokens,
           .tail_tokens = tail_tokens,
           .hash_seed = seed},
          seed, 2000);
      ++seed;
    }
  }
}

TEST(BlockManagerProperty, AgreesWithTheModelOfSalts) {
  for (const BlockHasher hasher : {xxh3_block_hash, constant_hash}) {
    run({.num_blocks = 24, .block_tokens = 2, .hash_seed = 1, .hasher = hasher}, 200, 5000, 3);
  }
}

// The results are the same with hashes that always or nearly always collide.
TEST(BlockManagerProperty, AgreesWithTheModelUnderWeakHashes) {
  uint64_t seed = 100;
  for (const BlockHasher hasher : {constant_hash, two_bit_hash}) {
    for (const int32_t num_blocks : {5, 16}) {
      run({.num_blocks = num_blocks, .block_tokens = 3, .hash_seed = seed, .hasher = hasher}, seed,
          3000);
      ++seed;
    }
  }
}

TEST(BlockManagerProperty, HundredThousandOperations) {
  // A sanitizer sees each kind of operation in a tenth of them.
  run({.num_blocks = 20, .block_tokens = 4, .hash_seed = 1}, 1000, kSanitized ? 10000 : 100000);
}

}  // namespace
}  // namespace sluice
