// Hot pages in the engine: the same bits for every size of the cache and without one, launched one
// by one or replayed, and counts that add up.
//
// The reference is the same policy with KV on the device, or with offloaded KV and no cache, where
// other tests have compared these. Runs on the device under test.
#include <algorithm>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/hooked_device.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/sample_of.h"
#include "support/seeds.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::sampled;

constexpr const char* kModel = "qwen3-group2-tied";  // 2 layers, 4 query and 2 KV heads of 32
constexpr int32_t kListPages = 6;                    // 3 of top-k, a sink, window, the row's own

struct Cache {
  int32_t block_tokens = 16;
  int32_t page_tokens = 16;
  double lists = 0;  // places, in lists of the longest sequence; 0: no cache
  int32_t num_seqs = 4;
  size_t host_bytes = 4 << 20;
  std::string policy = "full+quest";
};

EngineOptions options_of(const Cache& cache) {
  EngineOptions options = testing::tiny_options(kModel);
  options.sparse.policy = cache.policy;
  options.sparse.page_tokens = cache.page_tokens;
  options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
  options.sparse.threshold_tokens = 40;  // shorter sequences select everything
  if (cache.policy.ends_with("quest")) options.sparse.topk_tokens = 48;
  options.kv.offload = KvOffload::kChunked;
  options.kv.block_size = cache.block_tokens;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 1;
  options.kv.host_bytes = cache.host_bytes;
  options.max_num_seqs = cache.num_seqs;
  options.prefill_chunk_tokens = 64;
  options.max_num_batched_tokens = 128;
  options.kv.device_bytes = 0;
  if (cache.lists == 0) return options;
  // The device_bytes of this many places.
  const KvLayout layout{
      .num_layers = 2,
      .block = {.num_kv_heads = 2, .head_dim = 32, .block_tokens = cache.block_tokens}};
  const auto num_blocks = static_cast<int32_t>(cache.host_bytes / layout.block_bytes_all_layers());
  const auto places = static_cast<int32_t>(cache.lists * kListPages);
  options.kv.device_bytes =
      HotPageCache::device_bytes(layout, num_blocks, {places, cache.page_tokens});
  return options;
}

enum class Steps { kPlain, kPadded, kGraphs };

std::unique_ptr<LlmEngine> make_engine(EngineOptions options, Steps steps, uint64_t seed = 0) {
  options.enforce_eager = steps != Steps::kGraphs;
  auto device =
      testing::make_hooked_device(options.device, {.num_threads = 2}, {.schedule_seed = seed});
  return std::make_unique<LlmEngine>(
      options,
      LlmEngine::Parts{
          .device = std::move(device),
          .policies = make_policies(options),
          .adjust_plan = steps != Steps::kPlain ? testing::forced_graphs(options) : nullptr});
}

// More jobs than a batch holds, around block borders; two share a prefix.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {3, 15, 16, 33, 127, 250, 405}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(40, length)});
  }
  std::vector<int32_t> longer = jobs.back().prompt;
  const std::vector<int32_t> rest = random_tokens(60, 9);
  longer.resize(320);
  longer.insert(longer.end(), rest.begin(), rest.end());
  jobs.push_back({longer, sampled(40, 8)});
  return jobs;
}

HotPageObservations hot_pages_of(const LlmEngine& engine) {
  HotPageObservations sum;
  for (const LayerObservations& layer : engine.observations().decode.layers) {
    sum.num_hits += layer.hot_pages.num_hits;
    sum.num_misses += layer.hot_pages.num_misses;
    sum.num_evictions += layer.hot_pages.num_evictions;
  }
  return sum;
}

int64_t decode_bytes(const LlmEngine& engine) {
  int64_t sum = 0;
  for (const LayerObservations& layer : engine.observations().decode.layers) {
    sum += layer.h2d_bytes;
  }
  return sum;
}

std::string describe(const Cache& cache) {
  return cache.policy + ", blocks of " + std::to_string(cache.block_tokens) + ", pages of " +
         std::to_string(cache.page_tokens) + ", " + std::to_string(cache.lists) + " lists, " +
         std::to_string(cache.num_seqs) + " sequences";
}

TEST(HotPageRuns, SizesOfTheCacheChangeNoBit) {
  size_t index = 0;
  for (const char* policy : {"full+quest", "streaming+quest", "full+streaming"}) {
    for (const int32_t num_seqs : {1, 4, 8}) {
      if (!testing::in_sample(index++, 4)) continue;
      Cache cache{.num_seqs = num_seqs, .policy = policy};
      const auto without = make_engine(options_of(cache), Steps::kPlain);
      const auto reference = testing::run_jobs(*without, make_jobs());
      EXPECT_EQ(hot_pages_of(*without).num_hits, 0);
      for (const double lists : {1.0, 2.6, 4.0, 30.0}) {
        cache.lists = lists;
        // One of them with delays between the tasks of streams.
        const uint64_t seed = lists == 2.6 && num_seqs == 4 ? 5 : 0;
        const auto engine = make_engine(options_of(cache), Steps::kPlain, seed);
        ASSERT_NE(testing::offload_of(*engine).hot_pages(), nullptr) << describe(cache);
        expect_all_same(testing::run_jobs(*engine, make_jobs()), reference, describe(cache));
        const HotPageObservations hot = hot_pages_of(*engine);
        EXPECT_GT(hot.num_hits, 0) << describe(cache);
        EXPECT_GT(hot.num_misses, 0) << describe(cache);
        EXPECT_LE(hot.num_evictions, hot.num_misses);
        EXPECT_LT(decode_bytes(*engine), decode_bytes(*without)) << describe(cache);
        if (lists >= num_seqs) {
          // Nothing was gathered: every byte was a miss.
          EXPECT_EQ(decode_bytes(*engine), hot.num_misses * 16 * 32 * 4) << describe(cache);
        }
      }
    }
  }
}

// Sequences without places gather through slots, beside those with hot pages.
TEST(HotPageRuns, NumberAndSizeOfSlotsDoNotMatter) {
  const auto reference =
      testing::run_jobs(*make_engine(options_of({}), Steps::kPlain), make_jobs());
  for (const auto& [num_slots, slot_blocks] : {std::pair(2, 3), {5, 1}, {8, 8}}) {
    EngineOptions options = options_of({.lists = 1.5});
    options.kv.num_slots = num_slots;
    options.kv.slot_blocks = slot_blocks;
    const auto engine = make_engine(options, Steps::kPlain);
    expect_all_same(testing::run_jobs(*engine, make_jobs()), reference,
                    std::to_string(num_slots) + " slots");
    EXPECT_GT(hot_pages_of(*engine).num_hits, 0);
  }
}

TEST(HotPageRuns, EqualKvOnTheDeviceForPagesAndBlocksOfOtherSizes) {
  for (const auto& [block_tokens, page_tokens] : {std::pair(64, 16), {64, 32}, {32, 32}}) {
    const Cache cache{.block_tokens = block_tokens,
                      .page_tokens = page_tokens,
                      .lists = 4,
                      .num_seqs = testing::testing_cpu() ? 4 : 1};
    EngineOptions resident = options_of(cache);
    resident.kv.offload = KvOffload::kOff;
    expect_all_same(testing::run_engine(options_of(cache), make_jobs()),
                    testing::run_engine(resident, make_jobs()), describe(cache));
  }
}

TEST(HotPageRuns, TakesWhatWasPlannedAndAStepAllocatesNothing) {
  for (const double lists : {1.0, 6.0}) {
    const Cache cache{.lists = lists};
    const auto engine = make_engine(options_of(cache), Steps::kPlain);
    EXPECT_EQ(engine->device().allocated_bytes(MemoryKind::kDevice),
              engine->plan().memory.device_used_bytes())
        << describe(cache);
    const int64_t before = engine->device().num_allocations();
    testing::run_jobs(*engine, make_jobs());
    EXPECT_EQ(engine->device().num_allocations(), before) << describe(cache);
    EXPECT_GT(hot_pages_of(*engine).num_misses, 0);
  }
}

TEST(HotPageRuns, GraphsEqualStepsLaunchedOneByOne) {
  for (const double lists : {1.0, 2.0, 6.0}) {
    const Cache cache{.lists = lists};
    const auto padded = make_engine(options_of(cache), Steps::kPadded);
    const auto graphs = make_engine(options_of(cache), Steps::kGraphs, 3);
    const auto reference = testing::run_jobs(*padded, make_jobs());
    expect_all_same(testing::run_jobs(*graphs, make_jobs()), reference, describe(cache));
    EXPECT_EQ(padded->stats().num_graph_launches, 0);
    EXPECT_GT(graphs->stats().num_graph_launches, 40);
    EXPECT_GT(hot_pages_of(*graphs).num_hits, 0);
    EXPECT_EQ(hot_pages_of(*graphs).num_hits, hot_pages_of(*padded).num_hits);
    EXPECT_EQ(hot_pages_of(*graphs).num_hits, graphs->stats().num_hot_page_hits);
    EXPECT_EQ(hot_pages_of(*graphs).num_misses, graphs->stats().num_hot_page_misses);
    EXPECT_EQ(hot_pages_of(*graphs).num_misses, hot_pages_of(*padded).num_misses);
    EXPECT_EQ(hot_pages_of(*graphs).num_evictions, hot_pages_of(*padded).num_evictions);
    EXPECT_EQ(decode_bytes(*graphs), decode_bytes(*padded));
  }
}

// Blocks are written again under ids whose pages are hot: with little host memory requests are
// preempted and prefixes evicted, and every request must find its own KV.
TEST(HotPageRuns, IdsThatAreUsedAgainShowNoOldPages) {
  for (const bool prefix_caching : {false, true}) {
    Cache cache{.num_seqs = 3, .host_bytes = 34 * 16 * 512};  // 34 blocks
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 9; ++i) {
      jobs.push_back({random_tokens(150 + 7 * i, i % 3 == 2 ? i - 1 : i), sampled(50, i)});
    }
    const auto run = [&](double lists, int64_t& num_preemptions) {
      cache.lists = lists;
      EngineOptions options = options_of(cache);
      options.enable_prefix_caching = prefix_caching;
      const auto engine = make_engine(options, Steps::kPlain);
      std::vector<RequestOutput> outputs = testing::run_jobs(*engine, jobs);
      for (RequestOutput& again : testing::run_jobs(*engine, jobs)) outputs.push_back(again);
      num_preemptions = engine->stats().num_preemptions;
      EXPECT_EQ(testing::offload_of(*engine).hot_pages() != nullptr, lists > 0);
      return outputs;
    };
    int64_t without = 0, with = 0;
    const std::vector<RequestOutput> reference = run(0, without);
    for (const double lists : {1.0, 3.0, 4.2}) {
      expect_all_same(run(lists, with), reference, describe(cache));
      EXPECT_EQ(with, without);
      EXPECT_GT(with, 0) << "the test did not preempt anything";
    }
  }
}

TEST(HotPageRuns, CancelledRequestsLeaveNothingBehind) {
  const Cache cache{.lists = 4};
  const auto engine = make_engine(options_of(cache), Steps::kPlain);
  const auto reference =
      testing::run_jobs(*make_engine(options_of({}), Steps::kPlain), make_jobs());
  for (int round = 0; round < 3; ++round) {
    std::vector<SequenceId> ids;
    for (const Job& job : make_jobs()) ids.push_back(engine->add_request(job.prompt, job.params));
    for (int i = 0; i < 20 + 9 * round; ++i) engine->step();
    for (const SequenceId id : ids) engine->cancel_request(id);
    while (engine->has_unfinished()) engine->step();
  }
  expect_all_same(testing::run_jobs(*engine, make_jobs()), reference, "after cancelled requests");
}

// Sequences that share a prefix share its pages.
TEST(HotPageRuns, ASharedPrefixIsFetchedOnce) {
  const auto misses_of = [](bool is_shared) {
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 4; ++i) {
      std::vector<int32_t> prompt = random_tokens(384, is_shared ? 1 : 10 + i);
      const std::vector<int32_t> rest = random_tokens(20, 20 + i);
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      jobs.push_back({prompt, sampled(30, i)});
    }
    const auto engine = make_engine(options_of({.lists = 16}), Steps::kPlain);
    testing::run_jobs(*engine, jobs);
    return hot_pages_of(*engine).num_misses;
  };
  EXPECT_LT(misses_of(true), misses_of(false));
}

// One dial, three regimes.
TEST(HotPageRuns, TheBudgetDecidesWhatStays) {
  const auto kept = [](EngineOptions options) {
    const auto engine = make_engine(options, Steps::kPlain);
    return std::pair(engine->plan().memory.kv_on_device,
                     testing::offload_of(*engine).hot_pages() != nullptr);
  };
  EngineOptions options = options_of({.lists = 2});
  EXPECT_EQ(kept(options), std::pair(std::string("hot pages"), true));
  options.sparse = {};
  options.sparse.policy = "full";
  EXPECT_EQ(kept(options), std::pair(std::string("blocks that stay"), false));
  options = options_of({.lists = 0.9});
  EXPECT_EQ(kept(options), std::pair(std::string("blocks that stay"), false));
  options.kv.device_bytes = 8 << 20;  // more than the host tier
  EXPECT_EQ(kept(options), std::pair(std::string("all blocks"), false));
  EXPECT_EQ(kept(options_of({})), std::pair(std::string("none"), false));
}

}  // namespace
}  // namespace sluice
