// Transfers hide behind compute, and compute behind transfers: runs over a link whose rate makes
// transfers last half, once, twice and four times as long as compute.
//
// Prints what was measured. What is asserted is generous, since the machine may be busy with other
// things; at equal lengths a ring without overlap would need twice the longer one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::random_tokens;
using testing::sampled;

constexpr int64_t kPromptTokens = 2048;
constexpr int32_t kDecodeTokens = 9;  // the first belongs to the prefill
constexpr int32_t kChunkTokens = 256;
constexpr size_t kNumChunks = kPromptTokens / kChunkTokens;
constexpr size_t kNumSteps = kNumChunks + kDecodeTokens - 1;
constexpr double kGenerous = 2.0;

struct Step {
  double seconds = 1e9;
  double loaded_bytes = 0;
};
using Steps = std::vector<Step>;  // of one request: prefill chunks, then decode

EngineOptions chunked_needle() {
  EngineOptions options;
  options.model = SLUICE_SOURCE_DIR "/models/needle";
  options.skip_tokenizer_init = true;
  options.num_threads = 1;  // a core is left for the copies
  options.max_num_seqs = 1;
  options.max_model_len = kPromptTokens + 64;
  options.kv_offload = "chunked";
  options.block_size = 64;
  options.num_kv_slots = 4;
  options.kv_slot_blocks = 4;
  options.prefill_chunk_tokens = kChunkTokens;
  options.max_num_batched_tokens = kChunkTokens;
  options.enable_prefix_caching = false;
  return options;
}

int64_t loaded_bytes(const LlmEngine& engine) {
  const std::vector<int64_t>& bytes = engine.offload()->counters().loaded_bytes;
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

// The steps of one request, each the fastest of five, since nothing makes a step too fast.
// Rate 0: no limit.
Steps run(int64_t link_bytes_per_second) {
  DeviceOptions device_options;
  device_options.num_threads = 1;
  device_options.link_bytes_per_second = link_bytes_per_second;
  LlmEngine engine(chunked_needle(),
                   {.device = make_device("cpu", device_options), .policy = make_policy("full")});
  Steps steps(kNumSteps);
  for (int i = 0; i < 5; ++i) {
    engine.add_request(random_tokens(kPromptTokens, 1, 4000), sampled(kDecodeTokens, 1));
    for (Step& step : steps) {
      const int64_t bytes_before = loaded_bytes(engine);
      const auto begin = std::chrono::steady_clock::now();
      engine.step();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      step.seconds = std::min(step.seconds, seconds.count());
      step.loaded_bytes = static_cast<double>(loaded_bytes(engine) - bytes_before);
    }
    EXPECT_FALSE(engine.has_unfinished());
  }
  return steps;
}

struct Range {
  const char* name;
  size_t begin;
  size_t end;
};
constexpr Range kPrefill{"prefill", 0, kNumChunks};
constexpr Range kDecode{"decode", kNumChunks, kNumSteps};

// Throttles the link so that transfers take `transfer_share` of the compute time of the range's
// steps. Returns the wall time over the sum of each step's longer one: what is left to overlap
// within steps. The printed ratio to the longer total includes what no step can overlap: a chunk
// with little history does not use the link, one with much history does not use the cores.
double measure(const Steps& free, const Range& range, double transfer_share) {
  double compute = 0, bytes = 0;
  for (size_t i = range.begin; i < range.end; ++i) {
    compute += free[i].seconds;
    bytes += free[i].loaded_bytes;
  }
  const double rate = bytes / (transfer_share * compute);
  const Steps throttled = run(static_cast<int64_t>(rate));
  double wall = 0, bound = 0;
  for (size_t i = range.begin; i < range.end; ++i) {
    wall += throttled[i].seconds;
    bound += std::max(free[i].seconds, free[i].loaded_bytes / rate);
  }
  const double longer = std::max(compute, bytes / rate);
  std::printf(
      "%-7s compute %.3f s, transfer %.3f s, together %.3f s: %.3f x the longer one, "
      "%.3f x the longer one of each step\n",
      range.name, compute, bytes / rate, wall, wall / longer, wall / bound);
  return wall / bound;
}

TEST(OffloadOverlap, WallTimeIsThatOfTheLongerOne) {
  const Steps free = run(0);
  for (const Range& range : {kPrefill, kDecode}) {
    for (const double transfer_share : {0.5, 1.0, 2.0, 4.0}) {
      EXPECT_LT(measure(free, range, transfer_share), kGenerous) << range.name;
    }
  }
}

}  // namespace
}  // namespace sluice
