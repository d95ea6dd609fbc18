// The scheduler without a model: the order of prefill and decode, limits, and preemption.
#include "engine/scheduler.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "support/tiny_models.h"
#include "tokenizer/byte_tokenizer.h"

namespace sluice {
namespace {

class SchedulerTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBlockTokens = 16;

  void make(int32_t num_blocks, SchedulerLimits limits, int32_t cached_scope = 0) {
    BlockManagerOptions options;
    options.num_blocks = num_blocks;
    options.block_tokens = kBlockTokens;
    options.enable_prefix_caching = cached_scope > 0;
    options.scope_tokens = std::max(cached_scope, 1);
    blocks_ = std::make_unique<BlockManager>(options);
    scheduler_ = std::make_unique<Scheduler>(limits, *blocks_);
  }

  void add(int64_t id, int64_t num_tokens) {
    scheduler_->add(std::make_unique<Sequence>(
        SequenceId(id), testing::random_tokens(num_tokens, static_cast<uint64_t>(id)),
        SamplingParams{}, 0, Detokenizer(tokenizer_)));
  }

  // Pretends that the batch was computed and every wanted token was 7.
  void complete(const Batch& batch) {
    for (const ScheduledSequence& s : batch.sequences) {
      blocks_->commit(s.sequence->kv, s.sequence->tokens, s.num_rows);
      if (s.wants_token) s.sequence->tokens.push_back(7);
    }
  }

  std::vector<int64_t> ids_of(const Batch& batch) {
    std::vector<int64_t> ids;
    for (const ScheduledSequence& s : batch.sequences) ids.push_back(s.sequence->id.value);
    return ids;
  }

  Tokenizer tokenizer_ = make_byte_tokenizer();
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, PrefillsInOrderOfArrivalWithinTheBudget) {
  make(100, {.max_num_seqs = 8, .max_num_batched_tokens = 50, .prefill_chunk_tokens = 50});
  add(0, 30);
  add(1, 30);
  add(2, 5);
  Batch batch = scheduler_->schedule();
  EXPECT_EQ(batch.phase, Phase::kPrefill);
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(batch.num_rows(), 50);
  EXPECT_TRUE(batch.sequences[0].wants_token);
  EXPECT_FALSE(batch.sequences[1].wants_token) << "10 of its tokens are left";
  complete(batch);
  batch = scheduler_->schedule();
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{1, 2})) << "the span goes on before newcomers";
  EXPECT_EQ(batch.num_rows(), 15);
  complete(batch);
  batch = scheduler_->schedule();
  EXPECT_EQ(batch.phase, Phase::kDecode);
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{0, 1, 2}));
}

TEST_F(SchedulerTest, KeepsToMaxNumSeqs) {
  make(100, {.max_num_seqs = 2, .max_num_batched_tokens = 500, .prefill_chunk_tokens = 500});
  for (int64_t id = 0; id < 3; ++id) add(id, 4);
  complete(scheduler_->schedule());
  EXPECT_EQ(scheduler_->schedule().phase, Phase::kDecode);
  EXPECT_NE(scheduler_->remove(SequenceId(0)), nullptr);
  EXPECT_EQ(ids_of(scheduler_->schedule()), (std::vector<int64_t>{2}));
}

TEST_F(SchedulerTest, LargeRequestsAreNotOvertaken) {
  make(4, {.max_num_seqs = 8, .max_num_batched_tokens = 500, .prefill_chunk_tokens = 500});
  add(0, 20);  // 2 blocks
  add(1, 50);  // 4 blocks: has to wait
  add(2, 5);   // would fit, but came later
  Batch batch = scheduler_->schedule();
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{0}));
  complete(batch);
  EXPECT_EQ(scheduler_->schedule().phase, Phase::kDecode);
  scheduler_->remove(SequenceId(0));
  EXPECT_EQ(ids_of(scheduler_->schedule()), (std::vector<int64_t>{1}));
}

TEST_F(SchedulerTest, TheNewestGivesWayAndComesBackWithAllItsTokens) {
  make(4, {.max_num_seqs = 8, .max_num_batched_tokens = 500, .prefill_chunk_tokens = 500});
  add(0, 31);
  add(1, 31);
  complete(scheduler_->schedule());  // both hold 2 blocks, with room for one more token
  complete(scheduler_->schedule());
  Batch batch = scheduler_->schedule();  // both need a third block and none is left
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{0}));
  EXPECT_EQ(scheduler_->num_preemptions(), 1);
  complete(batch);
  EXPECT_EQ(scheduler_->schedule().phase, Phase::kDecode) << "1 waits: 3 blocks are not free";
  scheduler_->remove(SequenceId(0));
  batch = scheduler_->schedule();
  ASSERT_EQ(ids_of(batch), (std::vector<int64_t>{1}));
  EXPECT_EQ(batch.phase, Phase::kPrefill);
  EXPECT_EQ(batch.num_rows(), 33) << "31 of the prompt and the 2 it had generated";
}

// Spans of sequences that share a pass, that continue, and that end where rows run out.
TEST_F(SchedulerTest, SpansBeginAtScopesAndEndThereOrWithTheirPrompt) {
  make(100, {.max_num_seqs = 8,
             .max_num_batched_tokens = 150,
             .prefill_chunk_tokens = 100,
             .span_align_tokens = 64,
             .row_block_tokens = 16});
  const std::vector<int64_t> lengths = {205, 30, 70, 300, 129};
  for (size_t i = 0; i < lengths.size(); ++i) add(static_cast<int64_t>(i), lengths[i]);
  int num_cut = 0;
  Batch batch = scheduler_->schedule();
  for (; batch.phase == Phase::kPrefill; batch = scheduler_->schedule()) {
    EXPECT_LE(batch.num_rows(), 150);
    for (const ScheduledSequence& s : batch.sequences) {
      const int64_t begin = s.sequence->kv.num_tokens();
      EXPECT_EQ(begin % 64, 0) << "sequence " << s.sequence->id.value;
      if (s.wants_token) continue;
      EXPECT_EQ((begin + s.num_rows) % 64, 0) << "sequence " << s.sequence->id.value;
      ++num_cut;
    }
    complete(batch);
  }
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_GE(num_cut, 5) << "the test cuts few prompts";
}

// A short prompt takes its blocks of a pass, not a scope.
TEST_F(SchedulerTest, ShortPromptsShareAPassWhateverTheScopeIs) {
  make(100, {.max_num_seqs = 8,
             .max_num_batched_tokens = 64,
             .prefill_chunk_tokens = 64,
             .span_align_tokens = 64,
             .row_block_tokens = 16});
  for (int64_t id = 0; id < 5; ++id) add(id, 10);
  EXPECT_EQ(ids_of(scheduler_->schedule()), (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST_F(SchedulerTest, APrefixHitEndsAtAScope) {
  make(100,
       {.max_num_seqs = 8,
        .max_num_batched_tokens = 500,
        .prefill_chunk_tokens = 500,
        .span_align_tokens = 64},
       64);
  for (int64_t round = 0; round < 2; ++round) {
    // The same id, so that the tokens are the same.
    add(7, 150);
    const Batch batch = scheduler_->schedule();
    ASSERT_EQ(batch.sequences.size(), 1u);
    EXPECT_EQ(batch.num_rows(), round == 0 ? 150 : 150 - 128);
    complete(batch);
    scheduler_->remove(SequenceId(7));
  }
}

TEST_F(SchedulerTest, RemovingGivesAllBlocksBack) {
  make(10, {.max_num_seqs = 8, .max_num_batched_tokens = 20, .prefill_chunk_tokens = 20});
  add(0, 60);
  add(1, 60);
  complete(scheduler_->schedule());  // in the middle of a prefill
  EXPECT_NE(scheduler_->remove(SequenceId(0)), nullptr);
  EXPECT_NE(scheduler_->remove(SequenceId(1)), nullptr);
  EXPECT_EQ(scheduler_->remove(SequenceId(1)), nullptr);
  EXPECT_EQ(blocks_->num_used_blocks(), 0);
  EXPECT_FALSE(scheduler_->has_unfinished());
}

}  // namespace
}  // namespace sluice
