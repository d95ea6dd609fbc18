// An engine with dual chunk attention: answers within the first chunk are those of the same model
// without the key, bit for bit; past it they differ, and are the same wherever KV is, however the
// prompt is cut, whatever runs beside it, with drafts and from the prefix cache.
//
// The arithmetic itself is tested against double precision in tests/ops/dual_chunk_test.cc.
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "io/file.h"
#include "io/json.h"
#include "io/temp_dir.h"
#include "sluice/inspect.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_engine;
using testing::sampled;

constexpr int32_t kChunkTokens = 256;
constexpr const char* kModel = "qwen2-group7-tied";

// The tiny model with room for several chunks, with the key or without.
EngineOptions long_options(const TempDir& dir, bool has_key) {
  EngineOptions options = testing::tiny_options(kModel);
  for (const auto& entry : std::filesystem::directory_iterator(options.model)) {
    std::filesystem::copy(entry.path(), dir.path(),
                          std::filesystem::copy_options::overwrite_existing);
  }
  nlohmann::json config = read_json_file(dir.path() / "config.json");
  config["max_position_embeddings"] = 4096;
  if (has_key) {
    config["dual_chunk_attention_config"] = {{"chunk_size", kChunkTokens + 64},
                                             {"local_size", 64},
                                             {"original_max_position_embeddings", 320}};
  }
  write_file(dir.path() / "config.json", config.dump());
  options.model = dir.path();
  options.max_model_len = 1200;
  return options;
}

std::vector<Job> jobs_of(std::initializer_list<int64_t> lengths) {
  std::vector<Job> jobs;
  for (const int64_t length : lengths) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(20, length)});
  }
  return jobs;
}

class DualChunkEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: CUDA has no kernel for zones yet";
  }
  const TempDir dir_;
  const TempDir plain_dir_;
};

TEST_F(DualChunkEngine, TheFirstChunkHasTheBitsOfPlainAttention) {
  const std::vector<Job> jobs = jobs_of({5, 100, kChunkTokens - 20});
  expect_all_same(run_engine(long_options(dir_, true), jobs),
                  run_engine(long_options(plain_dir_, false), jobs), "first chunk");
}

TEST_F(DualChunkEngine, PastItAnswersDiffer) {
  const std::vector<Job> jobs = jobs_of({3 * kChunkTokens});
  const auto with_key = run_engine(long_options(dir_, true), jobs);
  const auto without = run_engine(long_options(plain_dir_, false), jobs);
  EXPECT_NE(with_key[0].logprobs[0][0].logprob, without[0].logprobs[0][0].logprob);
}

// Rows of several chunks in one pass, of one sequence and of several; decode across a border.
TEST_F(DualChunkEngine, AnswersDoNotDependOnPlacesCutsOrNeighbours) {
  const EngineOptions options = long_options(dir_, true);
  const std::vector<Job> jobs =
      jobs_of({50, kChunkTokens - 5, kChunkTokens + 1, 2 * kChunkTokens - 3, 900});
  const std::vector<RequestOutput> expected = run_engine(options, jobs);
  for (const testing::Place& place : testing::places()) {
    expect_all_same(run_engine(place.put(options), jobs), expected, place.name);
  }
  for (const int64_t rows : {64, 256, 1008}) {
    EngineOptions cut = options;
    cut.max_num_batched_tokens = rows;
    expect_all_same(run_engine(cut, jobs), expected, "passes of rows");
  }
  EngineOptions alone = options;
  alone.max_num_seqs = 1;
  expect_all_same(run_engine(alone, jobs), expected, "alone");
  EngineOptions drafts = options;
  drafts.speculative.method = SpeculativeMethod::kNgram;
  drafts.speculative.num_tokens = 6;
  expect_all_same(run_engine(drafts, jobs), expected, "drafts");
}

TEST_F(DualChunkEngine, SecondTurnsFindTheirPrefix) {
  const EngineOptions options = long_options(dir_, true);
  LLM llm(options);
  const std::vector<Job> first = jobs_of({600});
  testing::run_jobs(llm, first);
  std::vector<int32_t> prompt = first[0].prompt;
  const std::vector<int32_t> more = random_tokens(100, 3);
  prompt.insert(prompt.end(), more.begin(), more.end());
  const std::vector<Job> second = {{prompt, sampled(20, 9)}};
  const std::vector<RequestOutput> warm = testing::run_jobs(llm, second);
  EXPECT_GE(warm[0].num_cached_tokens, 560);
  expect_all_same(warm, run_engine(options, second), "warm");
}

TEST_F(DualChunkEngine, WhatItCannotDoIsRefusedByName) {
  EngineOptions options = long_options(dir_, true);
  const auto expect_refused = [&](ErrorCode code, const char* text) {
    try {
      plan_memory(options);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
    }
  };
  options.sparse.policy = "full+quest";
  expect_refused(ErrorCode::kUnsupported, "does not choose by the queries of dual chunk attention");
  options.max_model_len = kChunkTokens;
  EXPECT_NO_THROW(plan_memory(options));
  options = long_options(dir_, true);
  options.kv.block_size = 512;
  expect_refused(ErrorCode::kInvalidArgument, "block_size is 512");
}

}  // namespace
}  // namespace sluice
