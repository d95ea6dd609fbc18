// A hybrid whose heads have published widths, with blocks of 64 tokens: prompts of hundreds of rows
// take a GPU's kernels for chunks of the gated delta rule and for heads of 256 channels, which no
// narrower model and no smaller block does. On a CPU the same runs are chains of steps.
//
// The model is of tests/golden/models. What a GPU promises bit for bit is run in passes of equal
// rows; where rows differ, answers must be alike (support/run_bits.h).
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_prompts.h"
#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/loaded_weights.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::branch;
using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::joined;
using testing::near_tie_nats;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::Tokens;

constexpr const char* kChunkModel = "qwen35-hybrid-chunks";
constexpr int32_t kChunk = 64;  // rows, and tokens of a block

EngineOptions chunk_options() {
  EngineOptions options = testing::tiny_options(kChunkModel);
  options.kv.block_size = kChunk;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 512;
  return options;
}

// One request at a time, so that its passes have the same rows whatever the place of KV is.
EngineOptions alone(EngineOptions options) {
  options.max_num_seqs = 1;
  options.enable_prefix_caching = false;
  return options;
}

// Whole chunks, one token more, and ends within one.
std::vector<Job> chunk_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {256, 200, 333, 63, 385}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(20, length)});
  }
  return jobs;
}

// All rows at once: a GPU computes three chunks and eight steps of each state. golden_test has
// passes of 16 rows.
TEST(HybridChunks, LogitsMatchTransformers) {
  const testing::Golden golden = testing::read_golden(kChunkModel);
  EngineOptions options = alone(chunk_options());
  options.max_num_seqs = static_cast<int32_t>(golden.prompt.size());
  const std::vector<float> whole = LLM(options).trace(golden.prompt, {}).logits.data;
  EXPECT_LT(testing::nmse(whole, golden.logits), golden.bf16_nmse);
  // In passes of whole chunks, and of 50 rows, which hold none.
  for (const int32_t num_rows : {kChunk, 50}) {
    options.max_num_seqs = num_rows;
    const std::vector<float> cut = LLM(options).trace(golden.prompt, {}).logits.data;
    EXPECT_LT(testing::nmse(cut, golden.logits), golden.bf16_nmse) << num_rows;
    if (testing::testing_cpu()) {
      EXPECT_EQ(cut, whole) << num_rows;
    }
  }
}

// Chunks are products of bf16 numbers on a GPU, and steps on a CPU.
TEST(HybridChunks, AnswersAreAlikeThoseOfTheCpu) {
  EngineOptions options = chunk_options();
  options.device = "cpu";
  const std::vector<RequestOutput> expected = run_engine(alone(options), chunk_jobs());
  testing::expect_all_near(run_engine(chunk_options(), chunk_jobs()), expected, "the CPU",
                           testing::testing_cpu() ? 0 : near_tie_nats(kChunkModel));
}

TEST(HybridChunks, CutsAndNeighboursChangeNoBitOnACpu) {
  const std::vector<Job> jobs = chunk_jobs();
  const std::vector<RequestOutput> expected = run_engine(alone(chunk_options()), jobs);
  const float nats = near_tie_nats(kChunkModel);
  for (const int32_t chunk : {20, kChunk, 100, 3 * kChunk, 512}) {
    EngineOptions options = chunk_options();
    options.prefill_chunk_tokens = chunk;
    expect_all_alike(run_engine(options, jobs), expected, "chunks of " + std::to_string(chunk),
                     nats);
  }
}

// With passes of one chunk, of two, and of a whole prompt.
TEST(HybridChunks, ThePlaceOfKvChangesNoBit) {
  const std::vector<Job> jobs = chunk_jobs();
  for (const int32_t chunk : {kChunk, 2 * kChunk, 512}) {
    EngineOptions options = alone(chunk_options());
    options.max_num_batched_tokens = chunk;
    const std::vector<RequestOutput> expected = run_engine(options, jobs);
    for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
      EngineOptions offloaded = testing::with_offload(options, mode);
      for (const int32_t slot_blocks : {1, 3}) {
        offloaded.kv.slot_blocks = slot_blocks;
        expect_all_same(run_engine(offloaded, jobs), expected,
                        "passes of " + std::to_string(chunk) + ", " + kv_offload_name(mode));
      }
    }
  }
}

// With passes of one chunk the rows of a pass are the same, whether what is before them comes from
// a snapshot or was computed: also a GPU gives equal bits.
TEST(HybridChunks, ASnapshotHasTheBitsOfWhatItStandsFor) {
  EngineOptions options = chunk_options();
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = kChunk;
  const Tokens prompt = random_tokens(330, 1);
  const std::vector<Job> turns = {{prompt, sampled(20, 1)},
                                  {branch(prompt, 320, 70, 2), sampled(20, 2)},
                                  {branch(prompt, 270, 90, 3), sampled(20, 3)},
                                  {prompt, sampled(20, 4)}};
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
    EngineOptions caching = options;
    if (mode != KvOffload::kOff) caching = testing::with_offload(caching, mode);
    LLM llm(caching);
    const int64_t num_cached[] = {0, 256, 256, 320};
    for (size_t i = 0; i < turns.size(); ++i) {
      const std::vector<RequestOutput> outputs = run_jobs(llm, {turns[i]});
      const std::string what = std::string(kv_offload_name(mode)) + ", turn " + std::to_string(i);
      EXPECT_EQ(outputs[0].num_cached_tokens, num_cached[i]) << what;
      expect_all_same(outputs, run_engine(alone(caching), {turns[i]}), what);
    }
  }
}

// A turn that goes on from the state which steps of decoding left; cold, its rows are chunks.
TEST(HybridChunks, ASecondTurnIsAlikeOneThatIsComputed) {
  const EngineOptions options = chunk_options();
  testing::Compared compared(options);
  LLM llm(options);
  const Job first{random_tokens(200, 1), sampled(100, 1)};
  const std::vector<RequestOutput> outputs = run_jobs(llm, {first});
  compared.expect_same({first}, outputs, "first turn");
  const Tokens second = joined(joined(first.prompt, outputs[0].token_ids), random_tokens(40, 2));
  EXPECT_EQ(compared.cached(llm, second, "second turn"), 256);
}

// A pass of two chunks is given up after each of its parts, when states of some layers have its
// rows and others do not: what is computed again, or next, has not seen them.
TEST(HybridChunks, ACancelledPassLeavesNoState) {
  EngineOptions options = alone(chunk_options());
  options.prefill_chunk_tokens = options.max_num_batched_tokens = 2 * kChunk;
  const Job job{random_tokens(330, 4), sampled(6, 1)};
  const Job other{random_tokens(150, 5), sampled(6, 2)};
  const std::vector<RequestOutput> expected = run_engine(options, {job, other});
  for (int num_parts = 0; num_parts < 8; ++num_parts) {
    LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
    int num_heard = 0, num_given_up = 0;
    const PassWatch watch{.on_progress = [&](int64_t) { ++num_heard; },
                          .should_cancel =
                              [&] {
                                if (num_given_up == 3 || num_heard < num_parts) return false;
                                num_heard = 0;
                                return ++num_given_up > 0;
                              }};
    const SequenceId gone = engine.add_request(other.prompt, other.params);
    for (int i = 0; i < 3 && num_given_up == 0; ++i) engine.step(&watch);
    engine.drop_request(gone);
    std::vector<RequestOutput> outputs;
    for (const Job& next : {job, other}) {
      engine.add_request(next.prompt, next.params);
      while (engine.has_unfinished()) {
        for (RequestOutput& output : engine.step(&watch)) outputs.push_back(std::move(output));
      }
    }
    EXPECT_EQ(num_given_up, 3) << num_parts;
    expect_all_same(outputs, expected, "given up after " + std::to_string(num_parts));
  }
}

}  // namespace
}  // namespace sluice
