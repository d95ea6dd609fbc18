// The parts of speculation: the n-gram search against a plain one, the options as JSON, forced
// acceptance, and what the scheduler reserves.
#include <gtest/gtest.h>

#include "engine/scheduler_harness.h"
#include "engine/speculation/draft_limits.h"
#include "engine/speculation/hostile_drafts.h"
#include "engine/speculation/ngram_source.h"
#include "sluice/error.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

// ---- N-grams ----------------------------------------------------------------------------------

std::vector<int32_t> draft_of(NgramSource& source, const std::vector<int32_t>& tokens,
                              int64_t max_tokens) {
  std::vector<int32_t> draft;
  source.draft({.id = SequenceId(1), .tokens = tokens, .max_tokens = max_tokens}, draft);
  return draft;
}

using Tokens = std::vector<int32_t>;

TEST(Ngrams, DraftWhatFollowedTheSameTokens) {
  NgramSource source(2, 4);
  EXPECT_EQ(draft_of(source, {1, 2, 3, 4, 9, 1, 2}, 2), (Tokens{3, 4}));
}

TEST(Ngrams, TheLongestMatchWins) {
  NgramSource source(2, 4);
  //                                 longest        newest
  EXPECT_EQ(draft_of(source, {5, 1, 2, 7, 8, 8, 3, 1, 2, 6, 5, 1, 2}, 1), (Tokens{7}));
}

TEST(Ngrams, OfEqualMatchesTheNewestWins) {
  NgramSource source(2, 4);
  EXPECT_EQ(draft_of(source, {5, 1, 2, 7, 5, 1, 2, 8, 5, 1, 2}, 1), (Tokens{8}));
}

TEST(Ngrams, ShortTextsAndNewTokensHaveNoDraft) {
  NgramSource source(2, 4);
  EXPECT_TRUE(draft_of(source, {1}, 4).empty());
  EXPECT_TRUE(draft_of(source, {1, 2}, 4).empty());
  EXPECT_TRUE(draft_of(source, {1, 2, 3}, 4).empty());
  EXPECT_TRUE(draft_of(source, {1, 2, 3, 4, 3, 2}, 4).empty()) << "one token is no match";
}

TEST(Ngrams, ATextThatRepeatsGoesOnRepeating) {
  NgramSource source(2, 4);
  EXPECT_EQ(draft_of(source, {7, 8, 9, 7, 8}, 7), (Tokens{9, 7, 8, 9, 7, 8, 9}));
}

// The place that a search without an index finds.
int64_t plain_find(const Tokens& tokens, int64_t shortest, int64_t longest) {
  const auto n = std::ssize(tokens);
  int64_t best = 0, best_length = shortest - 1;
  for (int64_t place = n - 1; place >= shortest; --place) {
    int64_t length = 0;
    while (length < std::min(longest, place) && tokens[static_cast<size_t>(place - 1 - length)] ==
                                                    tokens[static_cast<size_t>(n - 1 - length)]) {
      ++length;
    }
    if (length > best_length) {
      best = place;
      best_length = length;
    }
  }
  return best;
}

// Texts of few different tokens, which grow by one: as many places as there may be, many equal.
TEST(Ngrams, FindWhatASearchWithoutAnIndexFinds) {
  for (const int32_t vocabulary : {3, 5, 20, 300}) {
    for (const auto& [shortest, longest] : {std::pair{1, 1}, {2, 4}, {3, 8}}) {
      const Tokens all = testing::random_tokens(1500, 3, vocabulary);
      NgramIndex index(shortest, longest);
      for (size_t count = 1; count <= all.size(); count += count % 3 + 1) {
        const Tokens tokens(all.begin(), all.begin() + static_cast<int64_t>(count));
        const int64_t expected = plain_find(tokens, shortest, longest);
        const int64_t found = index.find(tokens);
        // The newest 256 places of a bucket are looked at, which may not reach the longest match.
        if (found != expected && vocabulary <= 5) continue;
        ASSERT_EQ(found, expected) << vocabulary << ", " << count;
      }
    }
  }
}

TEST(Ngrams, SequencesAreApart) {
  NgramSource source(2, 4);
  std::vector<int32_t> draft;
  const Tokens first{1, 2, 3, 1, 2}, second{9, 1, 2};
  source.draft({.id = SequenceId(1), .tokens = first, .max_tokens = 1}, draft);
  EXPECT_EQ(draft, (Tokens{3}));
  draft.clear();
  source.draft({.id = SequenceId(2), .tokens = second, .max_tokens = 1}, draft);
  EXPECT_TRUE(draft.empty());
}

// ---- Options ----------------------------------------------------------------------------------

std::string refusal(const std::string& config) {
  SpeculativeOptions options;
  options.config = config;
  try {
    resolve_speculative(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(SpeculativeConfig, SetsTheOptions) {
  SpeculativeOptions options;
  options.config = R"({"method": "ngram+sparse", "num_speculative_tokens": 5,
                       "prompt_lookup_min": 3, "prompt_lookup_max": 6})";
  const SpeculativeOptions resolved = resolve_speculative(options);
  EXPECT_EQ(resolved.method, SpeculativeMethod::kNgramSparse);
  EXPECT_EQ(resolved.num_tokens, 5);
  EXPECT_EQ(resolved.prompt_lookup_min, 3);
  EXPECT_EQ(resolved.prompt_lookup_max, 6);
  options.config = R"({"method": "ngram", "num_speculative_tokens": 0})";
  EXPECT_FALSE(resolve_speculative(options).num_tokens.has_value());
}

TEST(SpeculativeConfig, RefusesWhatItDoesNotHave) {
  EXPECT_NE(refusal(R"({"method": "ngram", "model": "x"})").find("'model'"), std::string::npos);
  EXPECT_NE(refusal(R"({"method": "eagle"})").find("ngram+sparse"), std::string::npos);
  EXPECT_NE(refusal(R"({})").find("method"), std::string::npos);
  EXPECT_NE(refusal(R"({"method": "ngram", "num_speculative_tokens": 65})").find("64"),
            std::string::npos);
  EXPECT_NE(refusal("ngram"), "");
  EXPECT_NE(refusal(R"({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4})"), "");
}

TEST(SpeculativeConfig, StandsAlone) {
  SpeculativeOptions options;
  options.config = R"({"method": "ngram"})";
  options.prompt_lookup_max = 7;
  EXPECT_THROW(resolve_speculative(options), Error);
}

TEST(DraftLimits, AreThoseOfFewSequences) {
  SpeculativeOptions options;
  EXPECT_EQ(draft_limits(options, 256).max_rows(), 0);
  options.method = SpeculativeMethod::kNgram;
  EXPECT_EQ(draft_limits(options, 256).max_rows(), kMaxAutoDraftTokens * kMaxDraftingSeqs);
  options.num_tokens = 3;
  EXPECT_EQ(draft_limits(options, 2).max_rows(), 6);
}

// ---- Forced acceptance ------------------------------------------------------------------------

TEST(ForcedAcceptance, HasItsRateAndRepeats) {
  const ForcedAcceptance accepts = accept_at_rate(0.7);
  int num_accepted = 0;
  for (int64_t position = 0; position < 20000; ++position) {
    const bool accepted = accepts(SequenceId(3), position);
    EXPECT_EQ(accepted, accept_at_rate(0.7)(SequenceId(3), position));
    num_accepted += accepted ? 1 : 0;
  }
  EXPECT_NEAR(num_accepted / 20000.0, 0.7, 0.02);
}

// ---- Blocks -----------------------------------------------------------------------------------

class DraftBlocks : public testing::SchedulerHarness, public ::testing::Test {};

// Drafts take free blocks, and never those of another sequence.
TEST_F(DraftBlocks, ComeFromFreeBlocksOnly) {
  make({.num_blocks = 4,
        .limits = {.max_num_seqs = 4, .max_num_batched_tokens = 64, .prefill_chunk_tokens = 64}});
  add(1, 16);
  add(2, 20);
  Batch batch = scheduler_->schedule();
  complete(batch);
  batch = scheduler_->schedule();
  ASSERT_EQ(batch.kind, Phase::kDecode);
  ASSERT_EQ(batch.sequences.size(), 2u);
  EXPECT_EQ(kv_->blocks().num_free_blocks(), 0);
  EXPECT_EQ(kv_->reserve_drafts(sequence(1), 40), 15) << "row 16 of a block of its own";
  EXPECT_EQ(kv_->reserve_drafts(sequence(2), 40), 11) << "row 20 and those up to 31";
  complete(batch);
  EXPECT_EQ(sequence(1).kv.num_tokens(), 17);
  kv_->drop_drafts(sequence(1));
  EXPECT_EQ(sequence(1).kv.blocks().size(), 2u) << "the tail stays";
}

TEST_F(DraftBlocks, WithoutRowsAreGivenBack) {
  make({.num_blocks = 6,
        .limits = {.max_num_seqs = 4, .max_num_batched_tokens = 64, .prefill_chunk_tokens = 64}});
  add(1, 16);
  complete(scheduler_->schedule());
  const Batch batch = scheduler_->schedule();
  EXPECT_EQ(kv_->reserve_drafts(sequence(1), 40), 40);
  EXPECT_EQ(kv_->blocks().num_free_blocks(), 2);
  complete(batch);
  kv_->drop_drafts(sequence(1));
  EXPECT_EQ(kv_->blocks().num_free_blocks(), 4);
}

}  // namespace
}  // namespace sluice
