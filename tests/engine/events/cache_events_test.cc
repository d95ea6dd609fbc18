// The events of random requests against the prefix cache itself: whoever reads all of them knows
// exactly what it has, at any time, also if some were dropped.
#include "engine/kv/cache_events.h"

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/events/cache_event_reader.h"
#include "engine/kv/kv_station.h"
#include "support/sanitizer.h"
#include "tokenizer/byte_tokenizer.h"

namespace sluice {
namespace {

using testing::EventReader;
using testing::hash_of;
using testing::KeepingSink;
using testing::SaltedPrefix;

constexpr int32_t kBlock = 16;
constexpr int32_t kNumBlocks = 24;

struct Random {
  explicit Random(uint64_t seed) : engine(seed) {}
  int64_t below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(engine); }
  std::mt19937_64 engine;
};

// A KvStation under random requests, and what its index has by the tokens of the requests.
class RandomRequests {
 public:
  RandomRequests(uint64_t seed, bool overflows) : random_(seed) {
    if (overflows) kept_.refuses = [this] { return random_.below(4) == 0; };
    KvStation::Options options;
    options.blocks.num_blocks = kNumBlocks;
    options.blocks.block_tokens = kBlock;
    options.max_pinned_blocks = 4;
    station_ = std::make_unique<KvStation>(
        options, follower_, KvStation::MakeBacking(),
        CacheEvents(std::make_unique<KeepingSink>(kept_), kBlock, KvMedium::kGpu));
  }

  void step() {
    const int64_t choice = random_.below(100);
    if (choice < 30) begin();
    if (choice >= 30 && choice < 70) go_on();
    if (choice >= 70 && choice < 90) leave();
    if (choice >= 90 && choice < 93) station_->pins().release(pin_name());
    if (choice >= 93 && choice < 95) hold_block();
    if (choice >= 95 && choice < 97) run_alone();
    if (choice < 60) {
      station_->tell_routers();
      if (random_.below(2) == 0) kept_.deliver(reader_);
    }
  }

  void expect_exact() {
    station_->tell_routers();
    kept_.deliver(reader_);
    std::set<uint64_t> expected;
    for (int32_t i = 0; i < kNumBlocks; ++i) {
      if (!station_->blocks().is_findable(BlockId(i))) continue;
      expected.insert(hash_of(prefixes_.at(station_->blocks().prefix_id(BlockId(i))), kBlock));
    }
    EXPECT_EQ(reader_.hashes(), expected);
  }
  void end() {
    while (!running_.empty()) leave();
    while (!held_.empty()) hold_block();
    expect_exact();
  }
  const EventReader& reader() const { return reader_; }

 private:
  std::string pin_name() { return fmt::format("pin{}", random_.below(2)); }

  // Few beginnings, so that prompts share blocks, and salts that keep some of them apart.
  std::vector<int32_t> prompt() {
    std::vector<int32_t> tokens;
    const int64_t num_blocks = 1 + random_.below(8);
    for (int64_t i = 0; i < num_blocks; ++i) {
      tokens.insert(tokens.end(), kBlock, static_cast<int32_t>(random_.below(2)));
    }
    tokens.insert(tokens.end(), static_cast<size_t>(1 + random_.below(kBlock)), 7);
    return tokens;
  }

  void begin() {
    static const char* const kSalts[] = {"", "", "mine", "yours"};
    SamplingParams params;
    params.cache_salt = kSalts[random_.below(4)];
    auto sequence = std::make_unique<Sequence>(SequenceId(next_id_++), prompt(), params, 0,
                                               Detokenizer(tokenizer_));
    sequence->salt = station_->blocks().salt(params.cache_salt);
    if (random_.below(8) == 0) sequence->stored.pin = pin_name();
    const int64_t num_new = sequence->num_tokens() - station_->match(*sequence).num_tokens;
    if (station_->begin(*sequence, num_new)) running_.push_back(std::move(sequence));
  }

  // Some rows of a prompt, or a decode step.
  void go_on() {
    if (running_.empty()) return;
    Sequence& sequence = *any();
    const bool is_prefill = !sequence.kv.prefill_done();
    if (!is_prefill) sequence.append(static_cast<int32_t>(random_.below(2)));
    const int64_t num_rows = is_prefill ? 1 + random_.below(sequence.num_pending()) : 1;
    if (!station_->reserve(sequence, num_rows)) return;
    commit(sequence, is_prefill ? Phase::kPrefill : Phase::kDecode, num_rows);
  }

  void commit(Sequence& sequence, Phase phase, int64_t num_rows) {
    station_->commit(sequence, phase, num_rows);
    note_prefixes(sequence);
  }

  // Whatever is findable was once a sealed block of a running sequence.
  void note_prefixes(const Sequence& sequence) {
    for (int32_t i = 0; i < sequence.kv.num_sealed_blocks(); ++i) {
      const BlockId id = sequence.kv.blocks()[static_cast<size_t>(i)].id;
      if (!station_->blocks().is_findable(id)) continue;
      const auto end = sequence.tokens.begin() + (i + 1) * kBlock;
      prefixes_[station_->blocks().prefix_id(id)] = {sequence.params.cache_salt,
                                                     {sequence.tokens.begin(), end}};
    }
  }

  // It ends by itself, or is preempted or cancelled.
  void leave() {
    if (running_.empty()) return;
    const auto at = any_place();
    if ((*at)->num_pending() == 0 && random_.below(2) == 0) station_->ended(**at);
    station_->release(**at);
    running_.erase(at);
  }

  // As a transfer does: it may outlive the blocks before it.
  void hold_block() {
    auto& blocks = const_cast<BlockManager&>(station_->blocks());
    if (!held_.empty()) {
      blocks.end_transfer(held_.back());
      held_.pop_back();
      return;
    }
    for (int32_t i = kNumBlocks; i > 0; --i) {
      if (!blocks.is_findable(BlockId(i - 1))) continue;
      blocks.hold(BlockId(i - 1));
      held_.emplace_back(i - 1);
      return;
    }
  }

  void run_alone() {
    if (!running_.empty()) return;
    Sequence alone(SequenceId(next_id_++), prompt(), {}, 0, Detokenizer(tokenizer_));
    station_->begin_alone(alone);
    station_->commit_alone(alone, alone.num_tokens());
    note_prefixes(alone);
    station_->release(alone);
  }

  std::list<std::unique_ptr<Sequence>>::iterator any_place() {
    return std::next(running_.begin(), random_.below(std::ssize(running_)));
  }
  Sequence* any() { return any_place()->get(); }

  Random random_;
  Tokenizer tokenizer_ = make_byte_tokenizer();
  KvFollower follower_;
  KeepingSink::Kept kept_;
  EventReader reader_;
  std::unique_ptr<KvStation> station_;
  std::list<std::unique_ptr<Sequence>> running_;
  std::vector<BlockId> held_;
  std::map<int64_t, SaltedPrefix> prefixes_;  // by id
  int64_t next_id_ = 1;
};

TEST(CacheEvents, AreWhatThePrefixCacheHas) {
  constexpr int kSeeds = kSanitized ? 20 : 100;
  int64_t num_stored = 0, num_removed = 0, num_cleared = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomRequests run(static_cast<uint64_t>(seed), /*overflows=*/seed % 2 == 1);
    for (int i = 0; i < 400; ++i) {
      run.step();
      if (i % 10 == 0) run.expect_exact();
      if (::testing::Test::HasFailure()) return;
    }
    run.end();
    num_stored += run.reader().num_stored();
    num_removed += run.reader().num_removed();
    num_cleared += run.reader().num_cleared();
  }
  EXPECT_GT(num_stored, 100 * kSeeds);
  EXPECT_GT(num_removed, 20 * kSeeds) << "eviction";
  EXPECT_GT(num_cleared, 5 * kSeeds) << "dropped events";
}

TEST(CacheEvents, NameBlocksByTheirLastBytes) {
  StoreKey key;
  for (size_t i = 0; i < key.bytes.size(); ++i) key.bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(event_hash(key), 0x1819'1a1b'1c1d'1e1fU);
}

// Names are the same in every process and on every machine: routers compare them across replicas.
TEST(CacheEvents, HaveFixedNames) {
  const std::vector<int32_t> tokens(32, 5);
  const auto hashes = [&](int32_t block_tokens, const char* salt) {
    std::vector<uint64_t> all;
    for (const StoreKey& key : chain_keys(event_root(block_tokens, salt), tokens, block_tokens)) {
      all.push_back(event_hash(key));
    }
    return all;
  };
  EXPECT_EQ(hashes(16, ""),
            (std::vector<uint64_t>{0x70b5'da39'f6b9'b127U, 0xdf29'ef5d'516e'65cbU}));
  EXPECT_NE(hashes(16, "a"), hashes(16, ""));
  EXPECT_NE(hashes(32, "").at(0), hashes(16, "").at(1)) << "another size of blocks";
}

// Without a sink nothing is kept.
TEST(CacheEvents, CostNothingWithoutASink) {
  CacheEvents events;
  EXPECT_FALSE(events.exist());
  events.begun(-5, "salt");
  events.findable(1, -5, {});
  events.forgotten(1);
  events.released(-5);
  EXPECT_FALSE(events.stats().has_value());
  EXPECT_TRUE(events.endpoints().empty());
}

}  // namespace
}  // namespace sluice
