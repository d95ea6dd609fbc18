// An engine with KV in FP8 answers with the bits of one whose bf16 keys and values are rounded when
// they are written (rounded_writes.h), wherever KV is, whatever selects it and wherever it comes
// from.
//
// Reveals: a place that reads or moves KV without its scales, bounds and scores of other keys than
// those that are attended, and a store that takes one type for the other. That FP8 answers other
// bits than bf16 is tested too, since otherwise the comparisons would prove nothing. On a CPU one
// run is the reference of all places; a GPU promises the bits of a run with the same blocks and
// passes, so there each place has its own.
#include <algorithm>

#include <gtest/gtest.h>

#include "engine/fp8/rounded_writes.h"
#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "engine/store/store_engine.h"
#include "sluice/inspect.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_engine;
using testing::sampled;
using testing::testing_cpu;
using testing::tiny_options;

constexpr const char* kModel = "qwen3-group2-tied";   // 2 layers, 4 query and 2 KV heads of 32
constexpr const char* kBiased = "qwen2-group7-tied";  // its keys stay in bf16

EngineOptions in_fp8(EngineOptions options) {
  options.kv.cache_dtype = KvCacheDtype::kFp8;
  return options;
}

// Around borders of blocks, and past several of them.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {15, 16, 17, 63, 65, 250, 405}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(40, length)});
  }
  return jobs;
}

std::vector<RequestOutput> run_rounded(const EngineOptions& options, const std::vector<Job>& jobs,
                                       KvElement element = KvElement::kE4m3) {
  const testing::RoundedWrites rounded(element);
  return run_engine(options, jobs);
}

std::vector<RequestOutput> run_in_int8(EngineOptions options, const std::vector<Job>& jobs) {
  options.kv.cache_dtype = KvCacheDtype::kInt8;
  return run_engine(options, jobs);
}

// Whether one step at least had other log-probabilities.
bool differs(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b) {
  const auto same = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.token_id == y.token_id && x.logprob == y.logprob;
  };
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t step = 0; step < std::min(a[i].logprobs.size(), b[i].logprobs.size()); ++step) {
      if (!std::ranges::equal(a[i].logprobs[step], b[i].logprobs[step], same)) return true;
    }
  }
  return false;
}

// Every place of KV, with the same options otherwise.
std::vector<std::pair<std::string, EngineOptions>> in_all_places(const EngineOptions& options) {
  std::vector<std::pair<std::string, EngineOptions>> all;
  for (const testing::Place& place : testing::sampled_places()) {
    all.emplace_back(place.name, place.put(options));
  }
  EngineOptions by_kernels = testing::offloaded(options, KvOffload::kChunked, 16);
  by_kernels.kv.copy_bytes = size_t{1} << 40;
  by_kernels.kv.slot_blocks = 1;
  all.emplace_back("chunked, kernels", by_kernels);
  return all;
}

// `expected` are the answers of rounded writes with `options`, of which `placed` is a variant.
void expect_rounded(const EngineOptions& placed, const std::vector<Job>& jobs,
                    const std::vector<RequestOutput>& expected, const std::string& what) {
  expect_all_same(run_engine(in_fp8(placed), jobs),
                  testing_cpu() ? expected : run_rounded(placed, jobs), what);
}

TEST(Fp8KvEngine, HasTheBitsOfRoundedWritesInEveryPlace) {
  const std::vector<Job> jobs = make_jobs();
  const EngineOptions options = tiny_options(kModel);
  const std::vector<RequestOutput> expected = run_rounded(options, jobs);
  EXPECT_TRUE(differs(run_engine(options, jobs), expected));
  for (const auto& [name, placed] : in_all_places(options)) {
    expect_rounded(placed, jobs, expected, name);
  }
}

// int8 shares everything with FP8 but the rounding. So these are the places of KV, and lists of
// pages, whose bounds come from what is stored; that FP8 answers other bits shows that the element
// arrives.
TEST(Int8KvEngine, HasTheBitsOfRoundedWritesInEveryPlace) {
  const std::vector<Job> jobs = make_jobs();
  for (const char* policy : {"full", "full+quest"}) {
    EngineOptions options = tiny_options(kModel);
    options.sparse.policy = policy;
    if (options.sparse.policy == "full+quest") {
      options.sparse.page_tokens = options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
      options.sparse.topk_tokens = 48;
    }
    const std::vector<RequestOutput> expected = run_rounded(options, jobs, KvElement::kInt8);
    EXPECT_TRUE(differs(run_engine(in_fp8(options), jobs), expected));
    for (const auto& [name, placed] : in_all_places(options)) {
      expect_all_same(run_in_int8(placed, jobs),
                      testing_cpu() ? expected : run_rounded(placed, jobs, KvElement::kInt8),
                      std::string(policy) + name);
    }
  }
}

TEST(Fp8KvEngine, HasTheBitsOfRoundedWritesInEveryModelWithoutABiasOfKeys) {
  for (const std::string& model : testing::tiny_model_names()) {
    if (model.starts_with("qwen2")) continue;
    const std::vector<Job> jobs = {{random_tokens(90, 5), sampled(30, 5)}};
    const EngineOptions options = tiny_options(model);
    expect_all_same(run_engine(in_fp8(options), jobs), run_rounded(options, jobs), model);
  }
}

// ---- Keys with a bias, which stay in bf16 ------------------------------------------------------

std::vector<RequestOutput> run_rounded_values(const EngineOptions& options,
                                              const std::vector<Job>& jobs,
                                              KvElement element = KvElement::kE4m3) {
  const testing::RoundedWrites rounded(element, /*keys_in_bf16=*/true);
  return run_engine(options, jobs);
}

// As expect_rounded, for keys in bf16.
void expect_rounded_values(const EngineOptions& placed, const std::vector<Job>& jobs,
                           const std::vector<RequestOutput>& expected, const std::string& what) {
  expect_all_same(run_engine(in_fp8(placed), jobs),
                  testing_cpu() ? expected : run_rounded_values(placed, jobs), what);
}

EngineOptions listing(EngineOptions options) {
  options.sparse.policy = "full+quest";
  options.sparse.page_tokens = options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
  options.sparse.topk_tokens = 48;
  return options;
}

TEST(BiasedKeys, HaveTheBitsOfRoundedValuesInEveryPlace) {
  const std::vector<Job> jobs = make_jobs();
  const EngineOptions plain = tiny_options(kBiased);
  for (const EngineOptions& options : {plain, listing(plain)}) {
    const std::vector<RequestOutput> expected = run_rounded_values(options, jobs);
    EXPECT_TRUE(differs(run_engine(options, jobs), expected));
    for (const auto& [name, placed] : in_all_places(options)) {
      expect_rounded_values(placed, jobs, expected, options.sparse.policy + name);
    }
  }
  expect_all_same(run_in_int8(plain, jobs), run_rounded_values(plain, jobs, KvElement::kInt8),
                  "int8");
}

TEST(BiasedKeys, AreScoredAsTheyAre) {
  constexpr int32_t kTile = 128;
  const std::vector<Job> jobs = {{random_tokens(480, 3), sampled(12, 3)}};
  EngineOptions options = tiny_options(kBiased);
  options.sparse.policy = "sampled+quest";
  options.sparse.sink_tokens = options.sparse.recent_tokens = options.sparse.threshold_tokens = 0;
  options.sparse.tail_tokens = 1;
  options.sparse.topk_tokens = 64;
  options.sparse.coverage = 0.4;
  options.sparse.column_tokens = 20;
  options.kv.block_size = kTile;
  const std::vector<RequestOutput> expected = run_rounded_values(options, jobs);
  expect_rounded_values(options, jobs, expected, "resident");
  EngineOptions placed = testing::offloaded(options, KvOffload::kChunked, kTile);
  placed.max_num_batched_tokens = placed.prefill_chunk_tokens.emplace(4 * kTile);
  expect_rounded_values(placed, jobs, expected, "chunked");
}

TEST(Fp8KvEngine, SparseDecodeHasTheBitsOfRoundedWritesInEveryPlace) {
  const std::vector<Job> jobs = make_jobs();
  for (const char* policy : {"full+quest", "streaming"}) {
    EngineOptions options = tiny_options(kModel);
    options.sparse.policy = policy;
    options.sparse.page_tokens = 16;
    options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
    if (options.sparse.policy == "full+quest") options.sparse.topk_tokens = 48;
    const std::vector<RequestOutput> expected = run_rounded(options, jobs);
    for (const auto& [name, placed] : in_all_places(options)) {
      expect_rounded(placed, jobs, expected, std::string(policy) + name);
    }
  }
}

// Long prompts with KV of the type that rounds to `element`, resident and offloaded.
void expect_rounded_prefill(const std::string& policy, const SparseOptions& sparse,
                            KvCacheDtype dtype, KvElement element) {
  constexpr int32_t kTile = 128;
  const std::vector<Job> jobs = {{random_tokens(1300, 3), sampled(12, 3)},
                                 {random_tokens(700, 4), sampled(12, 4)}};
  EngineOptions options = tiny_options("llama-group2-linear");  // 2K positions
  options.sparse = sparse;
  options.sparse.policy = policy;
  options.kv.block_size = kTile;
  options.prefill_chunk_tokens = 4 * kTile;
  EngineOptions placed = testing::offloaded(options, KvOffload::kChunked, kTile);
  placed.prefill_chunk_tokens = 4 * kTile;
  placed.max_num_batched_tokens = 4 * kTile;
  const std::vector<RequestOutput> expected = run_rounded(options, jobs, element);
  const std::vector<RequestOutput> of_placed =
      testing_cpu() ? expected : run_rounded(placed, jobs, element);
  options.kv.cache_dtype = placed.kv.cache_dtype = dtype;
  expect_all_same(run_engine(options, jobs), expected, policy);
  expect_all_same(run_engine(placed, jobs), of_placed, policy + ", chunked");
}

TEST(Fp8KvEngine, SparsePrefillHasTheBitsOfRoundedWrites) {
  constexpr int32_t kTile = 128;
  const auto bare = [](SparseOptions options) {
    options.sink_tokens = options.recent_tokens = 0;
    options.threshold_tokens = 0;
    options.tail_tokens = 1;
    return options;
  };
  const std::vector<std::pair<const char*, SparseOptions>> policies = {
      {"sampled+quest", bare({.topk_tokens = 64, .coverage = 0.4, .column_tokens = 20})},
      {"sampled+full", bare({.coverage = 0.7, .two_stage_tokens = 2 * kTile, .column_tokens = 0})},
      {"minference+full",
       bare({.segment_tokens = 2 * kTile, .vertical_tokens = 40, .slash_tokens = 2 * kTile})},
      {"flexprefill+full", bare({.coverage = 0.4,
                                 .min_budget_tokens = 0,
                                 .segment_tokens = 2 * kTile,
                                 .vertical_tokens = 40,
                                 .divergence = 0.1})},
      {"xattention+full", bare({.coverage = 0.5, .stride = 8})},
      {"avgpool+full", bare({.topk_tokens = 256})}};
  for (const auto& [name, sparse] : policies) {
    expect_rounded_prefill(name, sparse, KvCacheDtype::kFp8, KvElement::kE4m3);
  }
  // Integers take the same ways: the policy that scores tiles, scores columns and gathers them.
  const auto& [name, sparse] = policies.front();
  expect_rounded_prefill(name, sparse, KvCacheDtype::kInt8, KvElement::kInt8);
}

TEST(Fp8KvEngine, DraftsChangeNothing) {
  const std::vector<Job> jobs = make_jobs();
  const std::vector<RequestOutput> expected = run_rounded(tiny_options(kModel), jobs);
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
    EngineOptions options = testing::speculative(method, 4);
    // Drafts of the sparse method are not those of the answers' policy, which is its own rule.
    const std::vector<RequestOutput> verified =
        method == SpeculativeMethod::kNgram ? expected : run_rounded(options, jobs);
    for (const auto& [name, placed] : in_all_places(options)) {
      // How many tokens are drafted follows measured times, and so does the height of a pass.
      expect_all_alike(run_engine(in_fp8(placed), jobs),
                       testing_cpu() ? verified : run_rounded(placed, jobs), name);
    }
  }
}

TEST(Fp8KvEngine, PrefixesAreThoseOfRoundedWrites) {
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked}) {
    EngineOptions options = tiny_options(kModel);
    if (mode != KvOffload::kOff) options = testing::offloaded(options, mode, 16);
    options.kv.block_size = 16;
    std::vector<Job> jobs;
    const auto second_answers = [&jobs](const EngineOptions& of) {
      LLM llm(of);
      jobs = {{testing::second_turn(llm), sampled(20, 7)}};
      return testing::run_jobs(llm, jobs);
    };
    const std::vector<RequestOutput> warm = second_answers(in_fp8(options));
    EXPECT_GT(warm[0].num_cached_tokens, 200);
    if (testing_cpu()) expect_all_same(warm, run_rounded(options, jobs), kv_offload_name(mode));
    const testing::RoundedWrites rounded;
    expect_all_same(warm, second_answers(options), kv_offload_name(mode));
  }
}

// ---- The store ---------------------------------------------------------------------------------

// Runs the jobs in an engine of their own, which writes everything before it ends. One after the
// other: when a read from disk ends decides who shares a pass, which changes bits on a GPU.
std::vector<RequestOutput> run_stored(const EngineOptions& options,
                                      const testing::TemporaryStore& store,
                                      const std::vector<Job>& jobs) {
  const auto engine = testing::make_engine(with_store(options, store));
  std::vector<RequestOutput> outputs;
  for (const Job& job : jobs) outputs.push_back(testing::run_jobs(*engine, {job}).front());
  return outputs;
}

EngineOptions store_options(KvOffload mode) {
  EngineOptions options = testing::store_options(mode);
  options.device = testing::test_device_spec();
  return options;
}

TEST(Fp8KvEngine, StoredKvIsThatOfRoundedWrites) {
  const std::vector<Job> jobs = make_jobs();
  const std::vector<RequestOutput> computed = run_rounded(store_options(KvOffload::kOff), jobs);
  const testing::TemporaryStore store;
  const testing::TemporaryStore rounded_store;
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
    const EngineOptions options = store_options(mode);
    const std::vector<RequestOutput> outputs = run_stored(in_fp8(options), store, jobs);
    if (testing_cpu()) expect_all_same(outputs, computed, kv_offload_name(mode));
    EXPECT_EQ(testing::sum_of_stored(outputs) > 0, mode != KvOffload::kOff);
    const testing::RoundedWrites rounded;
    expect_all_same(outputs, run_stored(options, rounded_store, jobs), kv_offload_name(mode));
  }
  // The same directory, another type: nothing is found.
  EngineOptions other = store_options(KvOffload::kOff);
  EXPECT_EQ(testing::sum_of_stored(run_stored(other, store, jobs)), 0);
  other.kv.cache_dtype = KvCacheDtype::kInt8;
  EXPECT_EQ(testing::sum_of_stored(run_stored(other, store, jobs)), 0);
}

// ---- The plan ----------------------------------------------------------------------------------

TEST(Fp8KvEngine, PlansCountItsBytes) {
  EngineOptions options = tiny_options(kModel);
  options.kv.cache_bytes = 1 << 20;
  const MemoryPlan plain = plan_memory(options);
  const MemoryPlan fp8 = plan_memory(in_fp8(options));
  EXPECT_EQ(plain.kv_cache_dtype, "bf16");
  EXPECT_EQ(fp8.kv_cache_dtype, "fp8_e4m3");
  // 33 bytes for the 64 of a head of 32.
  const size_t block_bytes = size_t{2} * 2 * 2 * 33 * static_cast<size_t>(fp8.block_size);
  EXPECT_EQ(fp8.num_blocks, static_cast<int64_t>((1 << 20) / block_bytes));
  for (const MemoryPlanEntry& entry : fp8.entries) {
    if (entry.name == "KV cache") {
      EXPECT_EQ(entry.bytes, static_cast<size_t>(fp8.num_blocks) * block_bytes);
    }
  }
  options.kv.cache_dtype = KvCacheDtype::kInt8;
  EXPECT_EQ(plan_memory(options).kv_cache_dtype, "int8");
  EXPECT_EQ(plan_memory(options).num_blocks, fp8.num_blocks);
  EXPECT_EQ(summarize_model(options.model).kv_bytes_per_token, size_t{2} * 2 * 2 * 64);
  EXPECT_EQ(summarize_model(options.model, KvCacheDtype::kFp8E4m3).kv_bytes_per_token,
            size_t{2} * 2 * 2 * 33);
}

// 2 layers of 2 KV heads of 32: 64 bytes of a key, 33 of a value.
TEST(BiasedKeys, ArePlannedToTheByteAndStoredUnderTheirName) {
  const EngineOptions options = in_fp8(tiny_options(kBiased));
  const MemoryPlan plan = plan_memory(options);
  EXPECT_EQ(plan.kv_cache_dtype, "bf16 keys, fp8_e4m3 values");
  const ModelSummary model = summarize_model(options.model, KvCacheDtype::kFp8);
  EXPECT_EQ(model.kv_bytes_per_token, static_cast<size_t>(model.num_kv_layers * model.num_kv_heads *
                                                          (3 * model.head_dim + 1)));
  const std::vector<Job> jobs = make_jobs();
  const std::vector<RequestOutput> computed = run_engine(options, jobs);
  const testing::TemporaryStore store;
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked}) {
    EngineOptions stored = store_options(mode);
    stored.model = options.model;
    const std::vector<RequestOutput> outputs = run_stored(in_fp8(stored), store, jobs);
    EXPECT_EQ(testing::sum_of_stored(outputs) > 0, mode != KvOffload::kOff);
  }
  EngineOptions other = store_options(KvOffload::kOff);
  other.model = options.model;
  EXPECT_EQ(testing::sum_of_stored(run_stored(other, store, jobs)), 0);
}

TEST(BiasedKeys, ArePlannedOnGpus) {
  const PlannedMachine machine{.gpu_bytes = size_t{48} << 30, .host_bytes = size_t{64} << 30};
  const MemoryPlan plan = plan_memory(in_fp8(tiny_options(kBiased)), machine);
  EXPECT_EQ(plan.kv_cache_dtype, "bf16 keys, fp8_e4m3 values");
}

// Before it is attended, the keys and values of one head: here less than the least scratch, 64 MiB.
// A policy that scores keys has those of 8 heads at once, of 40960 tokens.
TEST(Fp8KvEngine, PlansCountTheKvThatAGpuConverts) {
  const auto scratch_bytes = [](const char* policy, KvCacheDtype dtype) {
    EngineOptions options;
    options.model = testing::source_dir() / "models/shapes/qwen3-0.6b";
    options.sparse.policy = policy;
    options.kv.cache_dtype = dtype;
    const MemoryPlan plan =
        plan_memory(options, {.gpu_bytes = size_t{48} << 30, .host_bytes = size_t{64} << 30});
    return std::ranges::find(plan.entries, "scratch of ops", &MemoryPlanEntry::name)->bytes;
  };
  const size_t plain = scratch_bytes("sampled+full", KvCacheDtype::kBFloat16);
  const auto with_table = [](size_t num_bytes) { return num_bytes + num_bytes / 1024; };
  for (const KvCacheDtype dtype : {KvCacheDtype::kFp8, KvCacheDtype::kInt8}) {
    EXPECT_EQ(scratch_bytes("full", dtype) - plain, with_table(size_t{64} << 20));
    EXPECT_EQ(scratch_bytes("sampled+full", dtype) - plain,
              with_table(size_t{8} * 40960 * 128 * 2));
  }
}

// From the host a call reads a slot, or what stays on the GPU: less than the longest sequence,
// whose head takes 493 MiB here. What stays leaves room for its own conversion.
TEST(Fp8KvEngine, PlansFromTheHostConvertWhatACallReads) {
  EngineOptions options;
  options.model = testing::source_dir() / "models/shapes/qwen2.5-7b-1m";
  options.kv = {.cache_dtype = KvCacheDtype::kFp8, .offload = KvOffload::kChunked};
  options.kv.host_bytes = size_t{64} << 30;
  options.max_num_seqs = 1;
  const auto plan_of = [&](std::optional<size_t> device_bytes) {
    options.kv.device_bytes = device_bytes;
    return plan_memory(options, {.gpu_bytes = size_t{24} << 30, .host_bytes = size_t{128} << 30});
  };
  const auto bytes_of = [](const MemoryPlan& plan, const char* name) {
    const auto found = std::ranges::find(plan.entries, name, &MemoryPlanEntry::name);
    return found == plan.entries.end() ? 0 : found->bytes;
  };
  const MemoryPlan none = plan_of(0), most = plan_of(std::nullopt);
  EXPECT_TRUE(none.fits && most.fits) << none.remedy << most.remedy;
  EXPECT_EQ(bytes_of(none, "resident KV blocks"), 0u);
  // Of a token and KV head, keys in bf16, values in codes and their scale.
  const size_t stay_bytes = bytes_of(most, "resident KV blocks");
  const size_t num_tokens = stay_bytes / (size_t{28} * 4 * (128 * 2 + 128 + 1));
  const size_t least_bytes = size_t{64} << 20, line_bytes = num_tokens * 128 * 2;
  EXPECT_GT(2 * line_bytes, least_bytes);
  const auto with_table = [](size_t num_bytes) { return num_bytes + num_bytes / 1024; };
  const auto whole = [](size_t num_bytes) { return (num_bytes + (1 << 20) - 1) >> 20 << 20; };
  EXPECT_EQ(bytes_of(most, "scratch of ops") - bytes_of(none, "scratch of ops"),
            with_table(whole(2 * line_bytes)) - with_table(least_bytes));
  // The rest is less than three blocks.
  const size_t block_bytes = stay_bytes / num_tokens * 1024;
  EXPECT_LT(most.device_budget_bytes - most.device_used_bytes(), 3 * block_bytes);
}

}  // namespace
}  // namespace sluice
