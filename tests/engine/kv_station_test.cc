// KvStation: in which order the memory, the store and the block tables hear of an event.
#include "engine/kv/kv_station.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/tiny_models.h"
#include "tokenizer/byte_tokenizer.h"

namespace sluice {
namespace {

using testing::random_tokens;
using Events = std::vector<std::string>;

constexpr int32_t kBlockTokens = 16;

class RecordingFollower final : public KvFollower {
 public:
  explicit RecordingFollower(Events& events) : events_(events) {}
  void committed(SequenceId, int64_t num_tokens, BlockId newest_full) override {
    events_.push_back("memory: committed " + std::to_string(num_tokens) +
                      (newest_full.valid() ? ", some blocks are full" : ", no block is full"));
  }
  void drop_drafts(SequenceId, int64_t num_tokens) override {
    events_.push_back("memory: drafts dropped after " + std::to_string(num_tokens));
  }
  void release(SequenceId) override { events_.push_back("memory: released"); }
  void discard(BlockId) override { events_.push_back("memory: discarded"); }

 private:
  Events& events_;
};

class RecordingBacking final : public KvBacking {
 public:
  explicit RecordingBacking(Events& events) : events_(events) {}
  bool exists() const override { return true; }
  void begin(Sequence& sequence) override {
    events_.push_back("store: begun with " + std::to_string(sequence.kv.blocks().size()));
  }
  void release(Sequence& sequence) override {
    events_.push_back("store: released with " + std::to_string(sequence.kv.blocks().size()));
  }
  void committed(Sequence& sequence, PassKind) override {
    events_.push_back("store: committed " + std::to_string(sequence.kv.num_tokens()));
  }
  void forget(BlockId) override { events_.push_back("store: forgotten"); }

 private:
  Events& events_;
};

class KvStationTest : public ::testing::Test {
 protected:
  static KvStation::Options options(int32_t num_blocks, bool caches) {
    KvStation::Options options;
    options.blocks.num_blocks = num_blocks;
    options.blocks.block_tokens = kBlockTokens;
    options.blocks.enable_prefix_caching = caches;
    options.max_pinned_blocks = num_blocks;
    return options;
  }

  void make(int32_t num_blocks, bool caches = false) {
    kv_ = std::make_unique<KvStation>(options(num_blocks, caches), follower_,
                                      [this](BlockManager&, StateSnapshots&) {
                                        return std::make_unique<RecordingBacking>(events_);
                                      });
  }

  Sequence sequence(int64_t id, int64_t num_tokens) {
    return Sequence(SequenceId(id), random_tokens(num_tokens, 1), {}, 0, Detokenizer(tokenizer_));
  }

  // What has happened since the last call.
  Events events() { return std::exchange(events_, {}); }

  Tokenizer tokenizer_ = make_byte_tokenizer();
  Events events_;
  RecordingFollower follower_{events_};
  std::unique_ptr<KvStation> kv_;
};

TEST_F(KvStationTest, TellsMemoryBeforeTheStoreAndBeforeBlocksAreFree) {
  make(4);
  Sequence one = sequence(1, 20);
  ASSERT_TRUE(kv_->begin(one, 20));
  EXPECT_EQ(events(), Events{"store: begun with 2"});
  kv_->commit(one, Phase::kPrefill, 20);
  EXPECT_EQ(events(),
            (Events{"memory: committed 20, some blocks are full", "store: committed 20"}));
  EXPECT_EQ(one.answer.output.num_prompt_tokens_done, 20);
  kv_->release(one);
  EXPECT_EQ(events(), (Events{"memory: released", "store: released with 2", "memory: discarded",
                              "store: forgotten", "memory: discarded", "store: forgotten"}));
  EXPECT_EQ(kv_->blocks().num_used_blocks(), 0);
}

TEST_F(KvStationTest, DropsBlocksOfDraftsBeforeMemoryHearsOfIt) {
  make(4);
  Sequence one = sequence(1, kBlockTokens - 1);
  ASSERT_TRUE(kv_->begin(one, kBlockTokens - 1));
  kv_->commit(one, Phase::kPrefill, kBlockTokens - 1);
  EXPECT_EQ(kv_->reserve_drafts(one, 20), 20);
  events();
  kv_->drop_drafts(one);
  EXPECT_EQ(events(), (Events{"memory: discarded", "store: forgotten", "memory: discarded",
                              "store: forgotten", "memory: drafts dropped after 15"}));
  kv_->release(one);
}

TEST_F(KvStationTest, BeginsWhollyOrNotAtAll) {
  make(2);
  Sequence one = sequence(1, 40);
  EXPECT_FALSE(kv_->begin(one, 40));
  EXPECT_EQ(events(), Events());
  EXPECT_FALSE(one.kv.begun());
}

// A prompt whose tokens need scores is computed, not found; and a text alone is never stored.
TEST_F(KvStationTest, FindsAndStoresNothingWhereItMustNot) {
  make(8, /*caches=*/true);
  Sequence one = sequence(1, 40);
  ASSERT_TRUE(kv_->begin(one, 40));
  kv_->commit(one, Phase::kPrefill, 40);
  kv_->release(one);
  Sequence same = sequence(2, 40);
  EXPECT_EQ(kv_->match(same).num_tokens, 32);
  same.params.prompt_logprobs = 1;
  EXPECT_EQ(kv_->match(same).num_tokens, 0);
  events();
  kv_->begin_alone(same);
  EXPECT_EQ(same.kv.num_cached_tokens(), 0);
  kv_->commit_alone(same, 40);
  EXPECT_EQ(events(), Events());
  kv_->release(same);
}

// The null objects: no memory, no store.
TEST_F(KvStationTest, NeedsNeitherMemoryNorStore) {
  KvFollower no_memory;
  KvStation kv(options(4, /*caches=*/true), no_memory);
  EXPECT_FALSE(kv.store().exists());
  EXPECT_TRUE(kv.flush());
  Sequence one = sequence(1, 20);
  one.stored.pin = "name";
  ASSERT_TRUE(kv.begin(one, 20));
  kv.commit(one, Phase::kPrefill, 20);
  kv.ended(one);
  kv.release(one);
  ASSERT_EQ(kv.pins().list().size(), 1u);
  EXPECT_EQ(kv.pins().list()[0].num_tokens, 16);
  EXPECT_EQ(kv.blocks().num_other_holds(), 1);
  EXPECT_TRUE(kv.pins().release("name"));
  EXPECT_EQ(kv.blocks().num_used_blocks(), 0);
}

}  // namespace
}  // namespace sluice
