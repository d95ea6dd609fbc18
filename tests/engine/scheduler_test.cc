// The scheduler without a model: the order of prefill and decode, limits, and preemption.
#include "engine/schedule/scheduler.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/scheduler_harness.h"

namespace sluice {
namespace {

class SchedulerTest : public ::testing::Test, public testing::SchedulerHarness {
 protected:
  void make(int32_t num_blocks, const SchedulerLimits& limits, int32_t cached_scope = 0) {
    SchedulerHarness::make(
        {.num_blocks = num_blocks, .cached_scope = cached_scope, .limits = limits});
  }
};

TEST_F(SchedulerTest, RowsGoToTheShortestPromptFirstWithinTheBudget) {
  make(100, {.max_num_seqs = 8, .max_num_batched_tokens = 50, .prefill_chunk_tokens = 50});
  add(0, 31);
  add(1, 30);
  add(2, 5);
  Batch batch = scheduler_->schedule();
  EXPECT_EQ(batch.kind, Phase::kPrefill);
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(batch.num_rows(), 50);
  EXPECT_TRUE(batch.sequences[1].wants_token);
  EXPECT_FALSE(batch.sequences[2].wants_token) << "16 of its tokens are left";
  complete(batch);
  batch = scheduler_->schedule();
  EXPECT_EQ(batch.kind, Phase::kDecode);
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{1, 2}));
  complete(batch);
  add(3, 20);
  batch = scheduler_->schedule();
  EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{0, 3})) << "0 has 16 tokens left";
  EXPECT_EQ(batch.num_rows(), 36);
  complete(batch);
  EXPECT_EQ(ids_of(scheduler_->schedule()), (std::vector<int64_t>{0, 1, 2, 3}));
}

// Running sequences get a token after every pass of a long prompt.
TEST_F(SchedulerTest, DecodesBetweenTwoPrefillPasses) {
  make(100, {.max_num_seqs = 8, .max_num_batched_tokens = 16, .prefill_chunk_tokens = 16});
  add(0, 5);
  complete(scheduler_->schedule());
  add(1, 100);
  PassKind before = Phase::kPrefill;
  for (int step = 0; step < 14; ++step) {
    const Batch batch = scheduler_->schedule();
    EXPECT_NE(batch.kind, before) << "step " << step;
    EXPECT_EQ(ids_of(batch), (std::vector<int64_t>{step % 2})) << "step " << step;
    complete(batch);
    before = batch.kind;
  }
  EXPECT_EQ(ids_of(scheduler_->schedule()), (std::vector<int64_t>{0, 1})) << "the prompt is done";
}

// Short prompts that keep coming fill every pass but one in nine.
TEST_F(SchedulerTest, AnOvertakenPromptGetsRowsAfterEightPasses) {
  make(1000, {.max_num_seqs = 100, .max_num_batched_tokens = 16, .prefill_chunk_tokens = 16});
  add(0, 100);
  std::vector<int> passes;  // those with rows of the long prompt
  for (int pass = 0; pass < 40 && passes.size() < 4; ++pass) {
    add(1 + pass, 16);
    const Batch batch = scheduler_->schedule();
    ASSERT_EQ(batch.kind, Phase::kPrefill);
    if (batch.sequences[0].sequence->id.value == 0) passes.push_back(pass);
    complete(batch);
    if (pass > 0 || passes.empty()) complete(scheduler_->schedule());  // a decode step
  }
  EXPECT_EQ(passes, (std::vector<int>{8, 17, 26, 35}));
}

// A newer sequence has no memory left to decode, since the older one holds it for its prompt.
TEST_F(SchedulerTest, APromptGoesOnWhereDecodingHasNoMemory) {
  make(5, {.max_num_seqs = 8, .max_num_batched_tokens = 32, .prefill_chunk_tokens = 16});
  add(0, 64);
  add(1, 14);
  std::vector<std::vector<int64_t>> ids;
  for (int step = 0; step < 6; ++step) {
    const Batch batch = scheduler_->schedule();
    ids.push_back(ids_of(batch));
    complete(batch);
  }
  EXPECT_EQ(ids, (std::vector<std::vector<int64_t>>{{1, 0}, {1}, {0}, {1}, {0}, {0}}));
  EXPECT_EQ(scheduler_->num_preemptions(), 1);
}

// Without new requests and preemptions the guess at the next step is exact.
TEST_F(SchedulerTest, ExpectsTheStepThatComesNext) {
  make(1000, {.max_num_seqs = 8,
              .max_num_batched_tokens = 64,
              .prefill_chunk_tokens = 48,
              .span_align_tokens = 16,
              .row_block_tokens = 16,
              .max_rows_with_history = 48});
  for (int64_t id = 0; id < 8; ++id) add(id, 20 + 37 * ((5 * id) % 8));
  Batch batch = scheduler_->schedule();
  std::set<int64_t> admitted;
  int num_compared = 0;
  for (int step = 0; step < 60; ++step) {
    const std::vector<ExpectedSequence> expected = scheduler_->expect_next(batch);
    complete(batch);
    for (const int64_t id : ids_of(batch)) admitted.insert(id);
    batch = scheduler_->schedule();
    if (admitted.size() < 8) continue;
    ASSERT_EQ(expected.size(), batch.sequences.size()) << "step " << step;
    for (size_t i = 0; i < expected.size(); ++i) {
      const ScheduledSequence& s = batch.sequences[i];
      EXPECT_EQ(expected[i].id, s.sequence->id) << "step " << step;
      EXPECT_EQ(expected[i].num_rows, batch.kind == Phase::kPrefill ? s.num_rows : 0);
    }
    ++num_compared;
  }
  EXPECT_GT(num_compared, 40);
}

TEST_F(SchedulerTest, KeepsToMaxNumSeqs) {
  make(100, {.max_num_seqs = 2, .max_num_batched_tokens = 500, .prefill_chunk_tokens = 500});
  for (int64_t id = 0; id < 3; ++id) add(id, 4);
  complete(scheduler_->schedule());
  EXPECT_EQ(scheduler_->schedule().kind, Phase::kDecode);
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
  EXPECT_EQ(scheduler_->schedule().kind, Phase::kDecode);
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
  EXPECT_EQ(scheduler_->schedule().kind, Phase::kDecode) << "1 waits: 3 blocks are not free";
  scheduler_->remove(SequenceId(0));
  batch = scheduler_->schedule();
  ASSERT_EQ(ids_of(batch), (std::vector<int64_t>{1}));
  EXPECT_EQ(batch.kind, Phase::kPrefill);
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
  for (; ids_of(batch).size() < lengths.size(); batch = scheduler_->schedule()) {
    EXPECT_LE(batch.num_rows(), 150);
    for (const ScheduledSequence& s : batch.sequences) {
      if (batch.kind == Phase::kDecode) continue;
      const int64_t begin = s.sequence->kv.num_tokens();
      EXPECT_EQ(begin % 64, 0) << "sequence " << s.sequence->id.value;
      if (s.wants_token) continue;
      EXPECT_EQ((begin + s.num_rows) % 64, 0) << "sequence " << s.sequence->id.value;
      ++num_cut;
    }
    complete(batch);
  }
  EXPECT_EQ(batch.kind, Phase::kDecode);
  EXPECT_GE(num_cut, 4) << "the test cuts few prompts";
}

// Kernels of recurrent states compute 64 rows at once: whichever share a pass, however long it is,
// and wherever the first span of a prompt begins, only a prompt's end lies within such a chunk.
TEST_F(SchedulerTest, SpansEndWhereChunksOfStatesDo) {
  for (const int64_t chunk : {64, 100, 150}) {
    make(100,
         {.max_num_seqs = 8,
          .max_num_batched_tokens = 150,
          .prefill_chunk_tokens = chunk,
          .state_align_tokens = 64},
         16);
    add(9, 50);
    complete(scheduler_->schedule());
    scheduler_->remove(SequenceId(9));  // leaves 48 tokens in the cache
    const std::vector<int64_t> lengths = {205, 30, 70, 300, 129};
    for (size_t i = 0; i < lengths.size(); ++i) add(static_cast<int64_t>(i), lengths[i]);
    add(9, 220);
    std::set<int64_t> begins;  // of the cached prompt's spans
    int num_cut = 0;
    for (Batch batch = scheduler_->schedule(); ids_of(batch).size() < 6;
         batch = scheduler_->schedule()) {
      ASSERT_LE(batch.num_rows(), 150);
      for (const ScheduledSequence& s : batch.sequences) {
        if (batch.kind == Phase::kDecode) continue;
        if (s.sequence->id.value == 9) begins.insert(s.first_pos());
        if (s.wants_token) continue;
        EXPECT_EQ((s.first_pos() + s.num_rows) % 64, 0) << "sequence " << s.sequence->id.value;
        ++num_cut;
      }
      complete(batch);
    }
    EXPECT_GE(num_cut, 4) << "the test cuts few prompts";
    EXPECT_EQ(*begins.begin(), 48);
    EXPECT_GE(begins.size(), 2u);
  }
}

// The last token waits with the grammar, and the chunk that it ends with it: when the grammar is
// ready decides nothing.
TEST_F(SchedulerTest, APromptWithoutItsGrammarEndsWhereAChunkDoes) {
  make(100, {.max_num_seqs = 8,
             .max_num_batched_tokens = 500,
             .prefill_chunk_tokens = 500,
             .state_align_tokens = 64});
  add(0, 128);
  const auto order = std::make_shared<GrammarOrder>("", std::vector<std::string>());
  sequence(0).grammar.guide =
      std::make_shared<Guide>(Guide::Parts{.order = order, .vocab_size = 160}, SamplingParams());
  const Batch first = scheduler_->schedule();
  EXPECT_EQ(first.num_rows(), 64);
  complete(first);
  sequence(0).grammar.guide = nullptr;
  const Batch last = scheduler_->schedule();
  EXPECT_EQ(last.num_rows(), 64);
  EXPECT_TRUE(last.sequences[0].wants_token);
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
  EXPECT_EQ(kv_->blocks().num_used_blocks(), 0);
  EXPECT_FALSE(scheduler_->has_unfinished());
}

}  // namespace
}  // namespace sluice
