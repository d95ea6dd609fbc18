// Offloaded KV gives the results of resident KV, bit for bit; and the bytes that move, the memory
// that is taken and the chosen sizes follow their formulas.
//
// The reference is resident KV with full attention: every offloaded configuration must give the
// same tokens and the same bits of log-probability. On a GPU that holds for equal blocks and
// chunks; otherwise results must be alike (support/run_bits.h).
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/sample_of.h"
#include "support/seeds.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::offload_of;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::second_turn;
using testing::tiny_options;

constexpr const char* kModel = "qwen3-group2-tied";

struct OffloadCase {
  const char* mode;
  int32_t num_slots;
  int32_t slot_blocks;  // 0: a whole layer
  int32_t block_tokens;
  int32_t chunk_tokens;
};

EngineOptions offloaded(const OffloadCase& c) {
  EngineOptions options = tiny_options(kModel);
  options.kv.offload = testing::kv_offload_named(c.mode);
  options.kv.num_slots = c.num_slots;
  options.kv.slot_blocks = c.slot_blocks == 0 ? 512 / c.block_tokens : c.slot_blocks;
  options.kv.block_size = c.block_tokens;
  options.kv.host_bytes = 16 << 20;
  if (std::string(c.mode) == "chunked") {
    options.prefill_chunk_tokens = c.chunk_tokens;
    options.max_num_batched_tokens = std::max(c.chunk_tokens, 2 * c.block_tokens);
  }
  return options;
}

// Prompts of B-1, B, B+1 and 3B+7 tokens, as far as the tiny models' 512 positions go, that decode
// past more than two block boundaries where blocks are small.
std::vector<Job> jobs_for(int32_t block_tokens) {
  std::vector<Job> jobs;
  for (const int64_t length : {int64_t{block_tokens} - 1, int64_t{block_tokens},
                               int64_t{block_tokens} + 1, 3 * int64_t{block_tokens} + 7}) {
    if (length > 440) continue;
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(40, length)});
  }
  return jobs;
}

std::vector<RequestOutput> resident_reference(const std::vector<Job>& jobs) {
  return run_engine(tiny_options(kModel), jobs);
}

std::string describe(const OffloadCase& c) {
  return std::string(c.mode) + ", slots " + std::to_string(c.num_slots) + " x " +
         std::to_string(c.slot_blocks) + ", block " + std::to_string(c.block_tokens) + ", chunk " +
         std::to_string(c.chunk_tokens);
}

TEST(Offload, EqualsResidentOverTheGrid) {
  size_t index = 0;
  for (const int32_t block_tokens : {16, 64, 256}) {
    const std::vector<Job> jobs = jobs_for(block_tokens);
    const std::vector<RequestOutput> reference = resident_reference(jobs);
    for (const char* mode : {"chunked", "layerwise"}) {
      for (const int32_t num_slots : {2, 3, 8}) {
        for (const int32_t slot_blocks : {1, 4, 0}) {
          for (const int32_t chunk_tokens : {64, 512}) {
            if (std::string(mode) == "layerwise" && chunk_tokens != 64) continue;
            if (!testing::in_sample(index++, 4)) continue;
            const OffloadCase c{mode, num_slots, slot_blocks, block_tokens, chunk_tokens};
            expect_all_alike(run_engine(offloaded(c), jobs), reference, describe(c));
            if (num_slots != 3) continue;
            EngineOptions by_kernels = offloaded(c);
            by_kernels.kv.copy_bytes = int64_t{1} << 40;
            expect_all_alike(run_engine(by_kernels, jobs), reference, describe(c) + ", kernels");
          }
        }
      }
    }
  }
}

// What a GPU promises bit for bit, with equal blocks and chunks: residency, slots, slot sizes and
// the kind of transfer do not matter.
void expect_equal_residencies(KvCacheDtype dtype) {
  for (const int32_t chunk_tokens : {64, 512}) {
    const std::vector<Job> jobs = jobs_for(64);
    EngineOptions resident = offloaded({"chunked", 2, 1, 64, chunk_tokens});
    resident.kv.offload = KvOffload::kOff;
    resident.kv.cache_dtype = dtype;
    const std::vector<RequestOutput> reference = run_engine(resident, jobs);
    for (const int32_t num_slots : {2, 8}) {
      for (const int32_t slot_blocks : {1, 3, 0}) {
        for (const int64_t copy_bytes : {int64_t{0}, int64_t{1} << 40}) {
          const OffloadCase c{"chunked", num_slots, slot_blocks, 64, chunk_tokens};
          EngineOptions options = offloaded(c);
          options.kv.copy_bytes = copy_bytes;
          options.kv.cache_dtype = dtype;
          expect_all_same(run_engine(options, jobs), reference,
                          describe(c) + (copy_bytes == 0 ? ", copies" : ", kernels"));
        }
      }
    }
  }
}

TEST(Offload, ResidencySlotsAndTransfersNeverChangeABit) {
  expect_equal_residencies(KvCacheDtype::kAuto);
}

TEST(Offload, NorDoTheyOfFp8Kv) { expect_equal_residencies(KvCacheDtype::kFp8); }

TEST(Offload, AloneEqualsBatched) {
  const std::vector<Job> jobs = jobs_for(16);
  const EngineOptions options = offloaded({"chunked", 2, 1, 16, 64});
  const std::vector<RequestOutput> together = run_engine(options, jobs);
  for (size_t i = 0; i < jobs.size(); ++i) {
    expect_all_alike(run_engine(options, {jobs[i]}), {together[i]}, "alone");
  }
}

// The second turn of a conversation finds the blocks of the first in the host tier; they are loaded
// through the ring instead of being computed.
TEST(Offload, PrefixHitsOnHostBlocksEqualCold) {
  for (const char* mode : {"chunked", "layerwise"}) {
    LLM llm(offloaded({mode, 3, 4, 16, 64}));
    const std::vector<int32_t> second = second_turn(llm);
    const RequestOutput warm = llm.generate({second}, sampled(30, 2))[0];
    EXPECT_EQ(warm.num_cached_tokens, 224) << "229 tokens had KV: 14 full blocks";
    const std::vector<RequestOutput> cold =
        run_engine(tiny_options(kModel), {{second, sampled(30, 2)}});
    expect_all_alike({warm}, cold, mode);
  }
}

// The host tier is too small for all jobs: sequences are preempted and resumed.
TEST(Offload, PreemptionLosesNothing) {
  const std::vector<Job> jobs = jobs_for(16);
  EngineOptions options = offloaded({"chunked", 2, 4, 16, 64});
  options.max_model_len = 128;
  options.kv.host_bytes = 9 * 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // 9 blocks
  LLM llm(options);
  expect_all_alike(run_jobs(llm, jobs), resident_reference(jobs), "preempted");
  EXPECT_GT(llm.stats().num_preemptions, 0);
  // Prompts differ, so only a preempted sequence can find blocks: its own, still on the host.
  int64_t num_prompt_tokens = 0;
  for (const Job& job : jobs) num_prompt_tokens += static_cast<int64_t>(job.prompt.size());
  EXPECT_GT(llm.stats().num_cached_tokens, 0);
  std::printf("%ld preemptions: %ld tokens computed again, %ld found on the host\n",
              llm.stats().num_preemptions, llm.stats().num_prompt_tokens - num_prompt_tokens,
              llm.stats().num_cached_tokens);
}

// Delays between the tasks of all streams: every schedule must give the same bits. (On a GPU the
// reference is the same passes without delays, since resident passes have other heights.)
TEST(Offload, ScheduleOfStreamsDoesNotMatter) {
  const std::vector<Job> jobs = jobs_for(16);
  for (const char* mode : {"chunked", "layerwise"}) {
    const EngineOptions options = offloaded({mode, 2, 1, 16, 64});
    const std::vector<RequestOutput> reference =
        testing::testing_cpu() ? resident_reference(jobs) : run_engine(options, jobs);
    for (const uint64_t seed : testing::test_seeds(20)) {
      const DeviceOptions device_options{.num_threads = testing::testing_cpu() ? 2 : 0};
      LlmEngine engine(
          options, {.device = testing::make_test_device(device_options, {.schedule_seed = seed}),
                    .policies = make_policies("full")});
      expect_all_same(testing::run_jobs(engine, jobs), reference,
                      std::string(mode) + ", SLUICE_TEST_SEED=" + std::to_string(seed));
    }
  }
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Blocks that stay on the device are not loaded. Every budget gives the same bits; larger budgets
// load less, and one that holds everything loads nothing.
TEST(Offload, ResidencyChangesBytesAndNoBit) {
  const std::vector<Job> jobs = jobs_for(16);
  const std::vector<RequestOutput> reference = resident_reference(jobs);
  for (const char* mode : {"chunked", "layerwise"}) {
    int64_t loaded_with_less = std::numeric_limits<int64_t>::max();
    std::vector<RequestOutput> without;
    for (const int64_t num_blocks : {0, 1, 2, 5, 11, 100}) {
      EngineOptions options = offloaded({mode, 2, 2, 16, 64});
      options.kv.device_bytes = num_blocks * 2 * 2 * 2 * 16 * 32 * int64_t{sizeof(BFloat16)};
      LlmEngine engine(options,
                       {.device = testing::make_test_device(), .policies = make_policies("full")});
      EXPECT_EQ(engine.plan().offloaded.sizes.num_resident_blocks, num_blocks);
      EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
                engine.plan().memory.device_used_bytes());
      const std::vector<RequestOutput> outputs = testing::run_jobs(engine, jobs);
      if (num_blocks == 0) without = outputs;
      const std::string what = std::string(mode) + ", blocks that stay: ";
      expect_all_alike(outputs, reference, what + std::to_string(num_blocks));
      expect_all_same(outputs, without, what + std::to_string(num_blocks));
      const int64_t loaded = sum(offload_of(engine).counters().loaded_bytes);
      EXPECT_LT(loaded, loaded_with_less) << mode << ", " << num_blocks;
      EXPECT_TRUE(num_blocks < 100 || loaded == 0) << loaded;
      loaded_with_less = loaded;
    }
  }
}

// The bytes that move match the formulas.
TEST(Offload, MovesExactlyTheBytesItMust) {
  constexpr int64_t kPrompt = 256, kChunk = 64;
  const std::vector<Job> jobs{{random_tokens(kPrompt, 1), sampled(1, 1)}};
  for (const bool layerwise : {false, true}) {
    LlmEngine engine(offloaded({layerwise ? "layerwise" : "chunked", 2, 4, 16, kChunk}),
                     {.device = testing::make_test_device(), .policies = make_policies("full")});
    testing::run_jobs(engine, jobs);
    const auto token_bytes = static_cast<int64_t>(engine.plan().kv_layout.token_bytes()) /
                             engine.plan().kv_layout.num_layers;
    const TransferCounters& counters = offload_of(engine).counters();
    constexpr int64_t kChunks = kPrompt / kChunk;
    for (size_t layer = 0; layer < counters.loaded_bytes.size(); ++layer) {
      // Chunk i loads the KV of the i chunks before it; layer-wise prefill loads nothing.
      EXPECT_EQ(counters.loaded_bytes[layer],
                layerwise ? 0 : kChunks * (kChunks - 1) / 2 * kChunk * token_bytes);
      EXPECT_EQ(counters.written_bytes[layer], kPrompt * token_bytes) << "one copy of the KV";
    }
  }
}

TEST(Offload, TakesWhatWasPlannedAndAStepAllocatesNothing) {
  for (const char* mode : {"chunked", "layerwise"}) {
    LlmEngine engine(offloaded({mode, 2, 4, 16, 64}),
                     {.device = testing::make_test_device(), .policies = make_policies("full")});
    EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
              engine.plan().memory.device_used_bytes());
    const int64_t before = engine.device().num_allocations();
    testing::run_jobs(engine, jobs_for(64));
    EXPECT_EQ(engine.device().num_allocations(), before);
    EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
    EXPECT_EQ(offload_of(engine).tails().num_free(), engine.plan().offloaded.sizes.num_tails);
  }
}

TEST(Offload, TapsOfKeysAndValuesEqualResident) {
  const std::vector<int32_t> tokens = random_tokens(75, 9);
  EngineOptions options = tiny_options(kModel);
  LLM resident(options);
  LLM host(offloaded({"chunked", 2, 4, 16, 64}));
  const auto a = resident.trace(tokens, {"layer.*.k", "layer.*.v"});
  const auto b = host.trace(tokens, {"layer.*.k", "layer.*.v"});
  EXPECT_EQ(a.logits.data, b.logits.data);
  ASSERT_EQ(a.taps.size(), 4u);
  ASSERT_EQ(b.taps.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(a.taps[i].data, b.taps[i].data) << a.taps[i].name;
}

// The default slot is no larger than the longest sequence.
TEST(Offload, ASlotIsNoLongerThanTheLongestSequence) {
  const std::vector<Job> jobs = jobs_for(64);
  for (const char* mode : {"chunked", "layerwise"}) {
    EngineOptions options = offloaded({mode, 2, 1, 64, 64});
    options.kv.slot_blocks.reset();
    LlmEngine engine(options,
                     {.device = testing::make_test_device(), .policies = make_policies("full")});
    EXPECT_EQ(engine.plan().offloaded.sizes.slot_blocks, 512 / 64) << mode;
    expect_all_alike(testing::run_jobs(engine, jobs), resident_reference(jobs), mode);
  }
}

TEST(Offload, CancellationGivesEverythingBack) {
  LlmEngine engine(offloaded({"chunked", 2, 1, 16, 64}),
                   {.device = testing::make_test_device(), .policies = make_policies("full")});
  for (int round = 0; round < 50; ++round) {
    const SequenceId a = engine.add_request(random_tokens(100 + round, 1), sampled(20, 1));
    engine.add_request(random_tokens(30, 2), sampled(5, 1));
    for (int i = 0; i < round % 7; ++i) engine.step();  // ends in the middle of prefill or decode
    engine.cancel_request(a);
    while (engine.has_unfinished()) engine.step();
  }
  EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
  EXPECT_EQ(offload_of(engine).tails().num_free(), engine.plan().offloaded.sizes.num_tails);
}

TEST(Offload, AutoSaysWhatItChose) {
  EngineOptions options = tiny_options(kModel);
  options.kv.offload = KvOffload::kAuto;
  LLM llm(options);
  bool said = false;
  for (const std::string& note : llm.notes()) {
    said = said || note.find("kv_offload is off: all KV fits") != std::string::npos;
  }
  EXPECT_TRUE(said);
}

}  // namespace
}  // namespace sluice
