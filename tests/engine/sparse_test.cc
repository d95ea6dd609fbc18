// Sparse policies in the engine: the same bits for every place of KV and every way to cut a pass,
// no bytes moved beyond the budget, and full attention where the budget covers everything.
//
// The reference of a policy is the same policy with resident KV. That it differs from full
// attention is tested too, since otherwise the comparisons would prove nothing.
#include <algorithm>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/hooked_device.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/seeds.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::second_turn;

constexpr const char* kModel = "qwen3-group2-tied";  // 2 layers, 4 query and 2 KV heads of 32
constexpr int32_t kPage = 16;
constexpr size_t kBlockBytes = 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // of 16 tokens, all layers

EngineOptions resident(const std::string& policy) {
  EngineOptions options = testing::tiny_options(kModel);
  options.sparse.policy = policy;
  if (policy == "full") return options;
  options.sparse.page_tokens = kPage;
  options.sparse.sink_tokens = 16;
  options.sparse.recent_tokens = 16;
  if (policy.ends_with("quest")) options.sparse.topk_tokens = 48;
  return options;
}

struct Place {
  const char* mode;
  int32_t block_tokens;
  int32_t num_slots;
  int32_t slot_blocks;
  int32_t batch = 3;
};

EngineOptions offloaded(EngineOptions options, const Place& place) {
  options.kv.offload = testing::kv_offload_named(place.mode);
  options.kv.block_size = place.block_tokens;
  options.kv.num_slots = place.num_slots;
  options.kv.slot_blocks = place.slot_blocks;
  options.kv.host_bytes = 16 << 20;
  options.max_num_seqs = place.batch;
  if (std::string(place.mode) == "chunked") {
    options.prefill_chunk_tokens = 64;
    options.max_num_batched_tokens = std::max(64, 2 * place.block_tokens);
  }
  return options;
}

// Resident options with the same blocks, chunks and batches: no bit may differ, also on a GPU.
EngineOptions alike_resident(const EngineOptions& options, const Place& place) {
  EngineOptions alike = offloaded(options, place);
  alike.kv.offload = KvOffload::kOff;
  return alike;
}

// Lengths around a block border and far beyond the budget of five to six pages; decoding crosses
// more than two borders of the smaller blocks.
std::vector<Job> make_jobs(int32_t block_tokens) {
  std::vector<Job> jobs;
  for (const int64_t length : {block_tokens - 1, block_tokens, block_tokens + 1, 250, 405}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(40, length)});
  }
  return jobs;
}

const std::vector<std::string> kPolicies = {"full+quest", "streaming", "streaming+quest"};

bool same_text(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](const auto& x, const auto& y) { return x.token_ids == y.token_ids; });
}

std::string describe(const std::string& policy, const Place& place) {
  return policy + " " + place.mode + ", blocks of " + std::to_string(place.block_tokens) + ", " +
         std::to_string(place.num_slots) + " slots of " + std::to_string(place.slot_blocks) +
         ", batch " + std::to_string(place.batch);
}

TEST(Sparse, ASmallBudgetIsNotFullAttention) {
  const std::vector<Job> jobs = make_jobs(64);
  const std::vector<RequestOutput> full = run_engine(resident("full"), jobs);
  for (const std::string& policy : kPolicies) {
    EXPECT_FALSE(same_text(run_engine(resident(policy), jobs), full)) << policy;
  }
  EngineOptions shared = resident("full+quest");
  shared.sparse.shared_list = true;
  EXPECT_FALSE(same_text(run_engine(shared, jobs), run_engine(resident("full+quest"), jobs)));
}

TEST(Sparse, OffloadedEqualsResident) {
  const Place places[] = {{"chunked", 16, 2, 1},  {"chunked", 16, 3, 4, 1}, {"chunked", 16, 2, 32},
                          {"chunked", 64, 2, 1},  {"chunked", 64, 8, 2},    {"layerwise", 16, 2, 2},
                          {"layerwise", 64, 3, 1}};
  for (const std::string& policy : kPolicies) {
    for (const bool shared : {false, true}) {
      if (shared && policy == "streaming") continue;
      for (Place place : places) {
        // Offloaded spans end at block borders, so passes of several sequences have other heights.
        if (!testing::testing_cpu()) place.batch = 1;
        const std::vector<Job> jobs = make_jobs(place.block_tokens);
        EngineOptions options = resident(policy);
        options.sparse.shared_list = shared;
        expect_all_same(run_engine(offloaded(options, place), jobs),
                        run_engine(alike_resident(options, place), jobs),
                        describe(policy, place) + (shared ? ", shared" : ""));
      }
    }
  }
}

TEST(Sparse, PagesOfAllSizesGiveTheSameBitsOffloaded) {
  const Place place{"chunked", 64, 2, 1, testing::testing_cpu() ? 3 : 1};  // as above
  for (const int32_t page_tokens : {16, 32, 64}) {
    EngineOptions options = resident("streaming+quest");
    options.kv.block_size = 64;
    options.sparse.page_tokens = page_tokens;
    const std::vector<Job> jobs = make_jobs(64);
    for (const KvCacheDtype dtype : {KvCacheDtype::kAuto, KvCacheDtype::kFp8}) {
      options.kv.cache_dtype = dtype;
      expect_all_same(run_engine(offloaded(options, place), jobs),
                      run_engine(alike_resident(options, place), jobs),
                      "pages of " + std::to_string(page_tokens));
    }
  }
}

std::vector<RequestOutput> with_blocks_of(int32_t block_size, const std::string& policy,
                                          const std::vector<Job>& jobs) {
  EngineOptions options = resident(policy);
  options.kv.block_size = block_size;
  return run_engine(options, jobs);
}

// Pages are at absolute positions and have the same bounds in blocks of any size. On a GPU a step
// sums over windows of gcd(block_size, 256) tokens: block sizes with the same windows give the same
// bits. Other sizes round differently, so that pages with nearly equal scores may be chosen
// differently.
TEST(Sparse, BlockSizesDoNotMatter) {
  const std::vector<Job> jobs = make_jobs(64);
  for (const std::string& policy : kPolicies) {
    const auto of_16 = with_blocks_of(16, policy, jobs), of_256 = with_blocks_of(256, policy, jobs);
    expect_all_same(with_blocks_of(48, policy, jobs), of_16, policy + ", 48");
    expect_all_same(with_blocks_of(512, policy, jobs), of_256, policy + ", 512");
    if (testing::testing_cpu()) expect_all_same(of_256, of_16, policy + ", 256");
  }
}

// On the CPU every token, bit for bit. On a GPU products of another height round differently, and a
// different page may change the result without bound. Only the first token can be compared there,
// since full attention of the prompt gave it.
void expect_alike_until_selected(std::vector<RequestOutput> outputs,
                                 std::vector<RequestOutput> reference, const std::string& what) {
  if (!testing::testing_cpu()) {
    for (std::vector<RequestOutput>* all : {&outputs, &reference}) {
      for (RequestOutput& output : *all) {
        output.token_ids.resize(1);
        output.logprobs.resize(1);
      }
    }
  }
  expect_all_alike(outputs, reference, what);
}

// Chunks, batch neighbours and threads.
TEST(Sparse, HowAPassIsCutDoesNotMatter) {
  const std::vector<Job> jobs = make_jobs(64);
  for (const std::string& policy : kPolicies) {
    const std::vector<RequestOutput> reference = run_engine(resident(policy), jobs);
    for (const int32_t chunk : {1, 23, 128}) {
      EngineOptions options = resident(policy);
      options.max_num_batched_tokens = 128;
      options.prefill_chunk_tokens = chunk;
      expect_alike_until_selected(run_engine(options, jobs), reference, policy + ", other chunks");
    }
    EngineOptions options = resident(policy);
    options.max_num_seqs = 1;
    options.num_threads = 3;
    expect_alike_until_selected(run_engine(options, jobs), reference, policy + ", alone");
  }
}

TEST(Sparse, ABudgetThatCoversEverythingIsFullAttention) {
  const std::vector<Job> jobs = make_jobs(64);
  const std::vector<RequestOutput> full = run_engine(resident("full"), jobs);
  for (const std::string& policy : kPolicies) {
    EngineOptions by_budget = resident(policy);
    if (policy == "full+quest") {
      by_budget.sparse.topk_tokens = 512;
    } else {
      by_budget.sparse.recent_tokens = 512;
    }
    EngineOptions by_threshold = resident(policy);
    by_threshold.sparse.threshold_tokens = 512;
    for (const EngineOptions& options : {by_budget, by_threshold}) {
      expect_all_same(run_engine(options, jobs), full, policy);
      expect_all_alike(run_engine(offloaded(options, {"chunked", 16, 2, 3}), jobs), full,
                       policy + ", offloaded");
    }
  }
}

// Summaries belong to blocks, so a block that is reused has its summaries.
TEST(Sparse, PrefixHitsEqualCold) {
  for (const std::string& policy : kPolicies) {
    for (const bool on_host : {false, true}) {
      EngineOptions options = resident(policy);
      if (on_host) options = offloaded(options, {"chunked", 16, 3, 4});
      LLM llm(options);
      std::vector<int32_t> second = second_turn(llm);
      // Where the phases select differently, decoded KV differs from the KV of a prompt, so it is
      // cut out.
      if (policy != "streaming") second.erase(second.begin() + 192, second.begin() + 230);
      const RequestOutput warm = llm.generate({second}, sampled(30, 2))[0];
      EXPECT_GE(warm.num_cached_tokens, 192);
      expect_all_alike({warm}, run_engine(resident(policy), {{second, sampled(30, 2)}}), policy);
    }
  }
}

// With `streaming` a row reads the same pages in both phases, so recomputation gives the same row.
// Every layer has bounds of the pages that decode steps wrote: a run that decodes these tokens
// selects as one that has them in its prompt. Selection begins after them.
TEST(Sparse, DecodedPagesAreSelectedLikeThoseOfAPrompt) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: passes have other heights";
  constexpr int32_t kPrompt = 40, kDecoded = 160, kCompared = 24;
  EngineOptions options = resident("full+quest");
  options.sparse.threshold_tokens = kPrompt + kDecoded;
  for (const uint64_t seed : {1, 2, 3}) {
    Job job = {random_tokens(kPrompt, seed), sampled(kDecoded + kCompared, 0)};
    job.params.temperature = 0;
    RequestOutput decoded = run_engine(options, {job})[0];
    const auto end_of_dense = decoded.token_ids.begin() + kDecoded;
    job.prompt.insert(job.prompt.end(), decoded.token_ids.begin(), end_of_dense);
    job.params.max_tokens = kCompared;
    decoded.token_ids.erase(decoded.token_ids.begin(), end_of_dense);
    decoded.logprobs.erase(decoded.logprobs.begin(), decoded.logprobs.begin() + kDecoded);
    expect_all_same(run_engine(options, {job}), {decoded}, "seed " + std::to_string(seed));
  }
}

TEST(Sparse, PreemptionLosesNothingOfStreaming) {
  const std::vector<Job> jobs = make_jobs(16);
  EngineOptions options = resident("streaming");
  options.enable_prefix_caching = false;  // so that preempted KV is really computed again
  options.max_model_len = 448;
  options.kv.cache_bytes = 30 * kBlockBytes;
  LLM llm(options);
  expect_all_alike(run_jobs(llm, jobs), run_engine(resident("streaming"), jobs), "");
  EXPECT_GT(llm.stats().num_preemptions, 0) << "the test did not preempt anything";
}

// Rows that Quest decoded before a preemption are computed again as a prompt, with another
// selection. With the same preemptions, offloaded and resident runs agree.
TEST(Sparse, PreemptedAlikeOffloadedEqualsResident) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: passes have other heights on each side";
  std::vector<Job> jobs;
  for (const int64_t length : {200, 205, 210}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(40, length)});
  }
  for (const std::string& policy : kPolicies) {
    EngineOptions options = resident(policy);
    options.max_model_len = 448;
    options.max_num_seqs = 3;
    options.prefill_chunk_tokens = 64;
    options.max_num_batched_tokens = 64;
    EngineOptions on_host = offloaded(options, {"chunked", 16, 2, 4});
    options.kv.cache_bytes = 44 * kBlockBytes;  // the prompts take 41
    on_host.kv.host_bytes = options.kv.cache_bytes;
    LlmEngine a(options, {.device = testing::make_test_device()});
    LlmEngine b(on_host, {.device = testing::make_test_device()});
    const std::vector<RequestOutput> reference = run_jobs(a, jobs);
    EXPECT_GT(a.stats().num_preemptions, 0);
    expect_all_same(run_jobs(b, jobs), reference, policy);
    EXPECT_EQ(a.stats().num_preemptions, b.stats().num_preemptions);
  }
}

TEST(Sparse, ScheduleOfStreamsDoesNotMatter) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: offload_test delays a GPU's streams";
  const std::vector<Job> jobs = make_jobs(16);
  for (const std::string& policy : kPolicies) {
    const std::vector<RequestOutput> reference = run_engine(resident(policy), jobs);
    for (const uint64_t seed : testing::test_seeds(5)) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      auto device = testing::make_hooked_device("cpu", {.num_threads = 2}, {.schedule_seed = seed});
      LlmEngine engine(offloaded(resident(policy), {"chunked", 16, 2, 2}),
                       {.device = std::move(device)});
      expect_all_same(run_jobs(engine, jobs), reference, policy);
    }
  }
}

// Padded and replayed decode steps: padding rows must not affect a policy.
TEST(Sparse, ReplayedDecodeStepsEqualOthers) {
  const std::vector<Job> jobs = make_jobs(64);
  for (const std::string& policy : kPolicies) {
    LlmEngine engine(resident(policy), {.device = testing::make_test_device(),
                                        .adjust_plan = testing::forced_graphs(resident(policy))});
    expect_all_same(run_jobs(engine, jobs), run_engine(resident(policy), jobs), policy);
    EXPECT_GT(engine.stats().num_graph_launches, 0) << policy;
  }
}

// ---- Bytes moved, memory taken, counters ------------------------------------------------------

struct DecodeBytes {
  int64_t per_step = 0;  // of one layer
  PhaseObservations decode;
};

DecodeBytes decode_bytes(const std::string& policy, int64_t context, size_t resident_blocks = 0) {
  EngineOptions options = offloaded(resident(policy), {"chunked", 16, 4, 8});
  LlmEngine engine(options,
                   {.device = testing::make_test_device(), .adjust_plan = [&](EnginePlan& plan) {
                      testing::keep_blocks(plan, static_cast<int64_t>(resident_blocks));
                    }});
  run_jobs(engine, {{random_tokens(context, 1), sampled(9, 1)}});  // 8 steps, half a block
  const PhaseObservations decode = engine.observations().decode;
  return {decode.layers[0].h2d_bytes / decode.num_steps, decode};
}

TEST(Sparse, DecodeMovesTheBudgetWhateverTheContext) {
  constexpr int64_t kPageBytes = 2 * kPage * 32 * sizeof(BFloat16);  // of one KV head
  for (const std::string& policy : kPolicies) {
    // The sink page, 48 tokens by score, and the page before the newest one; the newest is in the
    // tail.
    const int64_t pages = policy == "streaming" ? 1 + 1 : 1 + 3 + 1;
    for (const int64_t context : {160, 320, 448}) {
      const DecodeBytes bytes = decode_bytes(policy, context);
      EXPECT_EQ(bytes.per_step, 2 * pages * kPageBytes) << policy << ", context " << context;
      EXPECT_EQ(bytes.decode.num_loads, 2 * bytes.decode.num_steps) << "one gather a layer";
    }
  }
  EXPECT_GT(decode_bytes("full", 448).per_step, decode_bytes("full+quest", 448).per_step * 4);
}

// Resident blocks are read on the device: all blocks, or as many as fit (the first of a sequence
// and the newest, which the window selects).
TEST(Sparse, DecodeMovesNothingOfWhatStays) {
  const int64_t none_stays = decode_bytes("full+quest", 320).per_step;
  const DecodeBytes all_stays = decode_bytes("full+quest", 320, 40);
  EXPECT_EQ(all_stays.per_step, 0);
  EXPECT_EQ(all_stays.decode.num_loads, 0) << "listed pages are read in place";
  const int64_t half_stays = decode_bytes("full+quest", 320, 10).per_step;
  EXPECT_GT(half_stays, none_stays / 8);
  EXPECT_LT(half_stays, none_stays * 5 / 8);
  EXPECT_EQ(decode_bytes("streaming", 320, 10).per_step, 0);
}

TEST(Sparse, DensitiesAreThoseOfTheRule) {
  const DecodeBytes bytes = decode_bytes("full+quest", 320);
  double selected = 0, visible = 0;
  for (int64_t pos = 320; pos < 328; ++pos) {
    selected += static_cast<double>(5 * kPage + pos % kPage + 1);
    visible += static_cast<double>(pos + 1);
  }
  ASSERT_TRUE(bytes.decode.density_selected.has_value());
  EXPECT_DOUBLE_EQ(*bytes.decode.density_selected, selected / visible);
  EXPECT_DOUBLE_EQ(*bytes.decode.layers[0].density_transferred, 5.0 * kPage / 320);
  EXPECT_EQ(bytes.decode.num_fallbacks, 0);
}

TEST(Sparse, SequencesThatFallBackAreCounted) {
  EngineOptions options = resident("full+quest");
  options.sparse.threshold_tokens = 100;
  LlmEngine engine(options, {.device = testing::make_test_device()});
  // Positions 30 to 38 and 95 to 103 are decoded: 9 + 5 of them before 100.
  run_jobs(engine,
           {{random_tokens(30, 1), sampled(10, 1)}, {random_tokens(95, 2), sampled(10, 2)}});
  const Observations seen = engine.observations();
  EXPECT_EQ(seen.sparse_policy, "full+quest");
  EXPECT_EQ(seen.decode.num_sequence_steps, 18);
  EXPECT_EQ(seen.decode.num_fallbacks, 14);
  EXPECT_EQ(seen.decode.num_full_rows, 14);
  EXPECT_EQ(seen.prefill.num_sequence_steps, 0) << "full makes no selection";
  EXPECT_EQ(seen.prefill.density_selected, 1.0);
}

// Slots between the sink and the window are not selected, so they are not loaded.
TEST(Sparse, PrefillLeavesOutWhatNoListCanTake) {
  LlmEngine engine(offloaded(resident("streaming"), {"chunked", 16, 2, 2}),
                   {.device = testing::make_test_device()});
  run_jobs(engine, {{random_tokens(384, 1), sampled(1, 1)}});
  const PhaseObservations prefill = engine.observations().prefill;
  // Chunk i of 64 tokens reads two slots of 32 tokens: the one with the sink and the one before the
  // chunk.
  const int64_t slotfuls = 2 + 4 * 2;
  EXPECT_EQ(prefill.num_loads, 2 * slotfuls);
}

TEST(Sparse, TakesWhatWasPlannedAndAStepAllocatesNothing) {
  for (const std::string& policy : kPolicies) {
    for (const bool on_host : {false, true}) {
      EngineOptions options = resident(policy);
      if (on_host) options = offloaded(options, {"chunked", 16, 2, 4});
      LlmEngine engine(options, {.device = testing::make_test_device()});
      EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
                engine.plan().memory.device_used_bytes());
      bool lists = false, summaries = false;
      for (const MemoryPlanEntry& entry : engine.plan().memory.entries) {
        lists = lists || entry.name == "selections";
        summaries = summaries || entry.name == "policy summaries";
      }
      EXPECT_TRUE(lists) << policy;
      EXPECT_EQ(summaries, policy.ends_with("quest"));
      const int64_t before = engine.device().num_allocations();
      run_jobs(engine, make_jobs(64));
      EXPECT_EQ(engine.device().num_allocations(), before);
    }
  }
}

// Where a memory budget limits the cache, KV and its summaries share it.
TEST(Sparse, SummariesComeOutOfTheKvBudget) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: the limit is the CPU device's";
  EngineOptions options = resident("full+quest");
  options.kv.cache_bytes.reset();
  options.max_num_seqs = 256;
  options.gpu_memory_utilization = 1;
  DeviceOptions device_options;
  device_options.memory_limit_bytes = 24 << 20;
  LlmEngine engine(options, {.device = make_device("cpu", device_options)});
  const MemoryPlan& memory = engine.plan().memory;
  EXPECT_TRUE(memory.fits);
  EXPECT_LE(memory.device_used_bytes(), memory.device_budget_bytes);
  EXPECT_GT(memory.device_used_bytes(),
            memory.device_budget_bytes - 2 * engine.plan().kv_layout.block_bytes_all_layers());
}

}  // namespace
}  // namespace sluice
