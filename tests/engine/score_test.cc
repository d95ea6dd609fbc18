// LLM::score against the logits of a trace and against the engine's own log-probabilities, with
// tiles of any size; and errors for texts that have no score.
#include <algorithm>
#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "sluice/llm.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::kTinyQwen;
using testing::random_tokens;
using testing::tiny_options;

constexpr size_t kVocab = 160;

std::vector<TokenScore> score(const std::vector<int32_t>& tokens, int32_t rows_per_pass,
                              const std::string& offload = "off") {
  EngineOptions options = tiny_options(kTinyQwen);
  options.max_num_seqs = rows_per_pass;  // rows of a tile
  options.kv.offload = testing::kv_offload_named(offload);
  return LLM(options).score(tokens);
}

bool same_bits(const TokenScore& a, const TokenScore& b) {
  return a.token_id == b.token_id && a.top_token_id == b.top_token_id &&
         std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob) &&
         std::bit_cast<uint32_t>(a.top_logprob) == std::bit_cast<uint32_t>(b.top_logprob);
}

TEST(Score, IsTheLogSoftmaxOfTheTracedLogits) {
  const std::vector<int32_t> tokens = random_tokens(50, 3);
  EngineOptions options = tiny_options(kTinyQwen);
  options.enable_prefix_caching = false;
  LLM llm(options);
  const std::vector<TokenScore> scores = llm.score(tokens);
  const LLM::Trace trace = llm.trace(tokens, {});
  ASSERT_EQ(scores.size(), tokens.size() - 1);
  for (size_t i = 0; i < scores.size(); ++i) {
    const float* row = trace.logits.data.data() + i * kVocab;
    long double sum = 0;
    for (size_t id = 0; id < kVocab; ++id) sum += std::exp(static_cast<long double>(row[id]));
    const auto expected = static_cast<double>(row[tokens[i + 1]] - std::log(sum));
    EXPECT_EQ(scores[i].token_id, tokens[i + 1]);
    // The score is rounded to float once; the error of the double sums is negligible.
    EXPECT_NEAR(static_cast<double>(scores[i].logprob), expected, 1e-6 * (1 + std::abs(expected)));
    const float top = *std::max_element(row, row + kVocab);
    EXPECT_EQ(row[scores[i].top_token_id], top) << i;
    EXPECT_GE(scores[i].top_logprob, scores[i].logprob);
  }
}

// The sampler's log-probabilities of its tokens equal those of `score` for the same text.
TEST(Score, AgreesWithTheEnginesOwnLogprobs) {
  EngineOptions options = tiny_options(kTinyQwen);
  options.enable_prefix_caching = false;
  LLM llm(options);
  SamplingParams params{.temperature = 1.0f, .seed = 7};
  params.max_tokens = 40;
  params.ignore_eos = true;
  params.logprobs = 1;
  const std::vector<int32_t> prompt = random_tokens(23, 5);
  const RequestOutput output = llm.generate({prompt}, params)[0];
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), output.token_ids.begin(), output.token_ids.end());
  const std::vector<TokenScore> scores = llm.score(text);
  ASSERT_EQ(scores.size(), prompt.size() + output.token_ids.size() - 1);
  for (size_t i = 0; i < output.token_ids.size(); ++i) {
    const TokenScore& mine = scores[prompt.size() - 1 + i];
    const double sampled = static_cast<double>(output.logprobs[i][0].logprob);
    // On the CPU the logits have the same bits. The sampler sums f32 exponentials (each off by a
    // few 2^-24, so is their sum) and rounds once; on a GPU products of other heights round
    // elsewhere.
    const double tolerance =
        testing::testing_cpu() ? 1e-6 * (1 + std::abs(sampled)) : 0.02 * (1 + std::abs(sampled));
    EXPECT_EQ(mine.token_id, output.token_ids[i]);
    EXPECT_NEAR(static_cast<double>(mine.logprob), sampled, tolerance) << i;
    EXPECT_NEAR(static_cast<double>(mine.top_logprob),
                static_cast<double>(output.logprobs[i][1].logprob), tolerance);
  }
}

TEST(Score, BitsDoNotDependOnTilesOrOnWhereKvIs) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "products of another height round differently";
  const std::vector<int32_t> tokens = random_tokens(70, 9);
  const std::vector<TokenScore> whole = score(tokens, 128);
  for (const auto& [rows, offload] : std::vector<std::pair<int32_t, const char*>>{
           {1, "off"}, {7, "off"}, {64, "off"}, {16, "chunked"}, {64, "layerwise"}}) {
    const std::vector<TokenScore> tiled = score(tokens, rows, offload);
    ASSERT_EQ(tiled.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(tiled[i].logprob),
                std::bit_cast<uint32_t>(whole[i].logprob))
          << rows << " " << offload << " " << i;
      EXPECT_EQ(tiled[i].top_token_id, whole[i].top_token_id);
    }
  }
}

TEST(Score, CancelsBetweenTilesAndTheEngineGoesOn) {
  EngineOptions options = tiny_options(kTinyQwen);
  options.max_num_seqs = 8;
  options.max_model_len = 128;
  options.kv.cache_bytes = 128 << 10;  // the KV of five such texts
  options.enable_prefix_caching = false;
  LLM llm(options);
  const std::vector<int32_t> tokens = random_tokens(50, 3);
  const std::vector<TokenScore> whole = llm.score(tokens);
  LLM::ScoreOptions cancel;
  cancel.should_cancel = [n = 0]() mutable { return ++n == 2; };
  EXPECT_EQ(llm.score(tokens, cancel).size(), 16u);
  // A callback that throws must release all blocks; otherwise the cache would soon be full.
  LLM::ScoreOptions thrower;
  thrower.on_progress = [](int64_t) { throw std::runtime_error("stop"); };
  for (int i = 0; i < 20; ++i) EXPECT_THROW(llm.score(tokens, thrower), std::runtime_error);
  EXPECT_EQ(llm.score(tokens).back().logprob, whole.back().logprob);
}

// A text that is in the prefix cache is computed again, with the same bits.
TEST(Score, ReadsNoCachedPrefix) {
  LLM llm(tiny_options(kTinyQwen));
  const std::vector<int32_t> tokens = random_tokens(90, 4);
  const std::vector<TokenScore> first = llm.score(tokens);
  const std::vector<TokenScore> second = llm.score(tokens);
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(first[i], second[i])) << i;
  SamplingParams params;
  params.max_tokens = 1;
  EXPECT_EQ(llm.generate({tokens}, params)[0].num_cached_tokens, 80);
}

TEST(Score, RefusesWhatHasNone) {
  LLM llm(tiny_options(kTinyQwen));
  for (const std::vector<int32_t>& tokens :
       std::vector<std::vector<int32_t>>{{}, {5}, {5, 160}, {5, -1}}) {
    try {
      llm.score(tokens);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    }
  }
}

std::vector<TokenScore> score_by_decode(EngineOptions options, const std::vector<int32_t>& tokens,
                                        int64_t decode_after) {
  options.enable_prefix_caching = false;
  LLM llm(options);
  return llm.score(tokens, {.decode_after = decode_after});
}

TEST(ScoreByDecode, WithFullAttentionHasTheNumbersOfPrefillAlsoOffloaded) {
  const std::vector<int32_t> tokens = random_tokens(90, 11);
  const std::vector<TokenScore> expected = score(tokens, 8);
  for (const char* offload : {"off", "chunked"}) {
    for (const int64_t decode_after : {1, 17, 89}) {
      EngineOptions options = tiny_options(kTinyQwen);
      options.kv.offload = testing::kv_offload_named(offload);
      const std::vector<TokenScore> got = score_by_decode(options, tokens, decode_after);
      ASSERT_EQ(std::ssize(got), 90 - decode_after);
      for (size_t i = 0; i < got.size(); ++i) {
        const TokenScore& wanted = expected[static_cast<size_t>(decode_after) - 1 + i];
        if (testing::testing_cpu()) {
          EXPECT_TRUE(same_bits(got[i], wanted)) << offload << " " << decode_after << " " << i;
        } else {
          EXPECT_NEAR(got[i].logprob, wanted.logprob, 0.02 * (1 + std::abs(wanted.logprob)));
        }
      }
    }
  }
}

TEST(ScoreByDecode, SeesThePolicyForDecodeAlikeWhereverKvLives) {
  const std::vector<int32_t> tokens = random_tokens(200, 12);
  EngineOptions options = tiny_options(kTinyQwen);
  const std::vector<TokenScore> full = score_by_decode(options, tokens, 100);
  options.sparse.policy = "full+quest";
  options.sparse.page_tokens = 16;
  options.sparse.topk_tokens = 32;
  options.sparse.sink_tokens = 16;
  options.sparse.recent_tokens = 16;
  const std::vector<TokenScore> resident = score_by_decode(options, tokens, 100);
  options.kv.offload = KvOffload::kLayerwise;
  const std::vector<TokenScore> offloaded = score_by_decode(options, tokens, 100);
  size_t num_moved = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    EXPECT_TRUE(same_bits(resident[i], offloaded[i])) << i;
    num_moved += same_bits(resident[i], full[i]) ? 0 : 1;
  }
  EXPECT_GT(num_moved, 50u);
}

TEST(ScoreByDecode, CanBeEndedAndRefusesWhatIsNoPartOfTheText) {
  EngineOptions options = tiny_options(kTinyQwen);
  LLM llm(options);
  const std::vector<int32_t> tokens = random_tokens(40, 13);
  int64_t num_scored = 0;
  LLM::ScoreOptions score_options;
  score_options.decode_after = 10;
  score_options.on_progress = [&](int64_t count) { num_scored = count; };
  score_options.should_cancel = [&] { return num_scored == 3; };
  EXPECT_EQ(llm.score(tokens, score_options).size(), 3u);
  EXPECT_FALSE(llm.has_unfinished());
  score_options = {.decode_after = 10};
  EXPECT_EQ(llm.score(tokens, score_options).size(), 30u);
  for (const int64_t decode_after : {-1, 40, 1000}) {
    score_options.decode_after = decode_after;
    EXPECT_THROW(llm.score(tokens, score_options), Error) << decode_after;
  }
}

}  // namespace
}  // namespace sluice
