// What changes attention, with several ranks: profiles of heads, KV in 8 bits, dual chunk
// attention. Each is near one rank with the same options, nearer than to one without, and no place
// of KV changes a bit.
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "support/loaded_weights.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::nmse;
using testing::random_tokens;
using testing::run_engine;
using testing::sampled;

class RankVariants : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::can_have(2)) GTEST_SKIP() << "skipped: no second GPU";
  }
};

EngineOptions with_ranks(EngineOptions options, int32_t num_ranks) {
  options.tensor_parallel_size = num_ranks;
  return options;
}

// Of every row of one sequence.
std::vector<float> logits_of(const EngineOptions& options, const std::vector<int32_t>& tokens) {
  return LLM(options).trace(tokens, {}).logits.data;
}

// The log-probability of each token of the prompt, from passes that select.
std::vector<float> scores_of(const EngineOptions& options, const std::vector<int32_t>& tokens) {
  Job job{tokens, sampled(1, 1)};
  job.params.prompt_logprobs = 0;
  std::vector<float> scores;
  const std::vector<RequestOutput> outputs = run_engine(options, {job});
  for (const auto& position : outputs[0].prompt_logprobs) {
    if (!position.empty()) scores.push_back(position[0].logprob);
  }
  return scores;
}

// `other` is one rank with another meaning, as with nothing of the variant: several ranks have to
// be nearer to one than that.
void expect_near_one_rank(const EngineOptions& one, const EngineOptions& other, int64_t num_tokens,
                          const std::string& what, decltype(&logits_of) numbers_of = logits_of) {
  const std::vector<int32_t> tokens = random_tokens(num_tokens, 5);
  const std::vector<float> expected = numbers_of(one, tokens);
  const double distance = nmse(numbers_of(other, tokens), expected);
  for (const int32_t num_ranks : {2, 4}) {
    if (!testing::can_have(num_ranks)) continue;
    const double error = nmse(numbers_of(with_ranks(one, num_ranks), tokens), expected);
    std::printf("%s: NMSE of %d ranks against one %.2e, of another meaning %.2e\n", what.c_str(),
                num_ranks, error, distance);
    EXPECT_GT(error, 0) << what << ": nothing was divided";
    EXPECT_LT(error, 3e-4) << what;
    EXPECT_LT(error, distance / 2) << what;
  }
}

// Prompts alone, and behind a beginning that they share.
std::vector<Job> some_jobs(int64_t longest) {
  std::vector<Job> jobs;
  const std::vector<int32_t> shared = random_tokens(longest / 2, 3);
  for (const int64_t length : {longest / 8, longest / 4, longest / 2}) {
    const auto seed = static_cast<uint64_t>(length);
    jobs.push_back({random_tokens(length, seed), sampled(12, length)});
    std::vector<int32_t> prompt = shared;
    for (const int32_t token : random_tokens(length, seed + 1)) prompt.push_back(token);
    jobs.push_back({prompt, sampled(12, length + 1)});
  }
  return jobs;
}

void expect_same_bits_in_all_places(const EngineOptions& options, const std::vector<Job>& jobs,
                                    const std::string& what,
                                    const std::vector<testing::Place>& places) {
  for (const int32_t num_ranks : {2, 4}) {
    if (!testing::can_have(num_ranks)) continue;
    const EngineOptions ranks = with_ranks(options, num_ranks);
    const std::vector<RequestOutput> expected = run_engine(ranks, jobs);
    for (const testing::Place& place : places) {
      expect_all_same(run_engine(place.put(ranks), jobs), expected, what + ", " + place.name);
    }
    if (!testing::testing_cpu()) continue;  // rows of large passes have other kernels there
    EngineOptions alone = ranks;
    alone.max_num_seqs = 1;
    alone.enable_prefix_caching = false;
    expect_all_same(run_engine(alone, jobs), expected, what + ", alone");
  }
}

// ---- Profiles of heads -------------------------------------------------------------------------

auto offloaded_by(KvOffload mode) {
  return [mode](const EngineOptions& options) { return testing::with_offload(options, mode); };
}

// A profile's heads go to the ranks that have them: those in front attend to nearly all, those
// behind to their newest tokens. The other way round, each would attend to other tokens.
TEST_F(RankVariants, ProfilesAreDividedAsHeads) {
  const TempDir dir;
  const auto write_profile = [&](const char* name, const char* front, const char* back) {
    std::string layer;
    for (int head = 0; head < 4; ++head) {
      layer +=
          (head == 0 ? "\"" : ", \"") + std::to_string(head) + "\": " + (head < 2 ? front : back);
    }
    const std::filesystem::path path = dir.path() / name;
    std::ofstream(path) << "[{" << layer << "}, {" << layer << "}]";
    return path.string();
  };
  const char* all = R"(["vertical_and_slash", 64, 2048, 1])";
  const char* few = R"(["stream_llm", 0, 128, 1])";
  EngineOptions options = testing::tiny_options("llama-group2-linear");  // 4 query, 2 KV heads
  options.kv.block_size = 128;                                           // of a tile
  options.sparse.policy = "minference+full";
  options.sparse.threshold_tokens = options.sparse.sink_tokens = options.sparse.recent_tokens = 0;
  options.sparse.profile = write_profile("profile", all, few);
  EngineOptions swapped = options;
  swapped.sparse.profile = write_profile("swapped", few, all);
  expect_near_one_rank(options, swapped, 1000, "profile", scores_of);
  expect_same_bits_in_all_places(options, some_jobs(900), "profile",
                                 {{"chunked", offloaded_by(KvOffload::kChunked)},
                                  {"layerwise", offloaded_by(KvOffload::kLayerwise)}});
}

// ---- KV in 8 bits ------------------------------------------------------------------------------

// A rank rounds the keys and values of its own heads, with scales of their own: another number of
// ranks changes what is rounded by a bf16 step at most.
TEST_F(RankVariants, KvInEightBits) {
  for (const char* model : {"llama-group2-linear", "qwen3-group2-tied"}) {
    for (const KvCacheDtype dtype : {KvCacheDtype::kFp8, KvCacheDtype::kInt8}) {
      const EngineOptions plain = testing::tiny_options(model);
      EngineOptions options = plain;
      options.kv.cache_dtype = dtype;
      const std::string what = std::string(model) + ", " + kv_cache_dtype_name(dtype);
      expect_near_one_rank(options, plain, 300, what);
      expect_same_bits_in_all_places(options, some_jobs(200), what,
                                     testing::comparable_places(options));
    }
  }
}

// ---- Dual chunk attention ----------------------------------------------------------------------

// The tiny model with room for several chunks of 256 tokens.
EngineOptions chunk_options(const TempDir& dir, bool has_key) {
  EngineOptions options = testing::tiny_options("qwen3-group2-tied");
  for (const auto& entry : std::filesystem::directory_iterator(options.model)) {
    std::filesystem::copy(entry.path(), dir.path(),
                          std::filesystem::copy_options::overwrite_existing);
  }
  nlohmann::json config = read_json_file(dir.path() / "config.json");
  config["max_position_embeddings"] = 4096;
  if (has_key) {
    config["dual_chunk_attention_config"] = {
        {"chunk_size", 320}, {"local_size", 64}, {"original_max_position_embeddings", 320}};
  }
  write_file(dir.path() / "config.json", config.dump());
  options.model = dir.path();
  options.max_model_len = 1200;
  return options;
}

// Queries of three zones of keys, for the heads of each rank; prompts of up to four chunks. On a
// GPU without places whose passes have other rows.
TEST_F(RankVariants, DualChunkAttention) {
  const TempDir dir, plain_dir;
  const EngineOptions options = chunk_options(dir, true);
  expect_near_one_rank(options, chunk_options(plain_dir, false), 900, "dual chunk attention");
  std::vector<testing::Place> places = {{"chunked", offloaded_by(KvOffload::kChunked)},
                                        {"layerwise", offloaded_by(KvOffload::kLayerwise)}};
  if (testing::testing_cpu()) places = testing::places();
  expect_same_bits_in_all_places(options, some_jobs(900), "dual chunk attention", places);
  if (!testing::testing_cpu()) return;  // passes of other heights choose other pages
  EngineOptions quest = options;
  quest.sparse.policy = "full+quest";
  quest.sparse.page_tokens = quest.sparse.sink_tokens = quest.sparse.recent_tokens = 16;
  quest.sparse.topk_tokens = 64;
  expect_same_bits_in_all_places(quest, some_jobs(900), "dual chunk attention, quest",
                                 {testing::place_of("layerwise"), testing::place_of("hot pages")});
}

}  // namespace
}  // namespace sluice
