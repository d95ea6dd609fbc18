// Decode policies that make page lists, past the first chunk of dual chunk attention: the same
// answers wherever KV is, however the prompt is cut, whatever runs beside it, as drafts, from the
// prefix cache and from a store; those of full attention where the budget covers everything, and in
// the first chunk those of the model without the key.
//
// Scores and attention over lists are tested against double precision in tests/ops/zones.
#include <gtest/gtest.h>

#include "engine/dual_chunk/dual_chunk_engine.h"
#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "engine/store/store_engine.h"
#include "kv/hot_page_cache.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::jobs_of;
using testing::kChunkTokens;
using testing::run_engine;
using testing::run_jobs;

constexpr int32_t kPageTokens = 16;
constexpr int32_t kListPages = 8;  // 4 of top-k, a sink, window, the row's own

EngineOptions with_policy(EngineOptions options, const char* policy) {
  options.sparse.policy = policy;
  options.sparse.page_tokens = kPageTokens;
  options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
  if (std::string(policy).ends_with("quest")) options.sparse.topk_tokens = 64;
  return options;
}

EngineOptions with_quest(const EngineOptions& options) {
  return with_policy(options, "full+quest");
}

class DualChunkQuest : public testing::DualChunkTest {
 protected:
  // KV in host memory, and hot places for the lists of two sequences: those of more are gathered.
  EngineOptions hot(EngineOptions options) const {
    options = testing::offloaded(std::move(options), KvOffload::kChunked, 16);
    options.kv.host_bytes = 4 << 20;
    const bool is_fp8 = GetParam().kv == KvCacheDtype::kFp8;
    const int32_t head_dim = testing::testing_cpu() ? (is_fp8 ? 32 : 16)
                             : GetParam().is_wide   ? 128
                                                    : 16;
    const KvLayout layout{.num_layers = 2,
                          .block = {.num_kv_heads = is_fp8 ? 2 : 1,
                                    .head_dim = head_dim,
                                    .block_tokens = 16,
                                    .element = is_fp8 ? KvElement::kE4m3 : KvElement::kBFloat16}};
    const auto num_blocks =
        static_cast<int32_t>(*options.kv.host_bytes / layout.block_bytes_all_layers());
    options.kv.device_bytes =
        HotPageCache::device_bytes(layout, num_blocks, {2 * kListPages, kPageTokens});
    return options;
  }
};

int64_t hot_hits(const LlmEngine& engine) {
  int64_t sum = 0;
  for (const LayerObservations& layer : engine.observations().decode.layers) {
    sum += layer.hot_pages.num_hits;
  }
  return sum;
}

// Contexts within a chunk, across one border while decoding, and of several chunks.
std::vector<Job> all_jobs() {
  return jobs_of({50, kChunkTokens - 5, kChunkTokens + 1, 2 * kChunkTokens - 3, 900});
}

TEST_P(DualChunkQuest, ASmallBudgetIsNotFullAttention) {
  const std::vector<Job> jobs = jobs_of({3 * kChunkTokens});
  const auto full = run_engine(options(), jobs);
  for (const char* policy : {"full+quest", "full+streaming"}) {
    const auto sparse = run_engine(with_policy(options(), policy), jobs);
    EXPECT_NE(sparse[0].logprobs[1][0].logprob, full[0].logprobs[1][0].logprob) << policy;
  }
}

// Quest as it would be if it chose by the queries of a row's own chunk alone.
class QuestWithoutZones final : public Policy {
 public:
  explicit QuestWithoutZones(std::unique_ptr<Policy> quest)
      : Policy("quest without zones", Phase::kDecode), quest_(std::move(quest)) {}
  SelectionRule rule(const KvBlockShape& block) const override { return quest_->rule(block); }
  bool knows_zones() const override { return true; }
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override {
    return quest_->memory(layout, num_blocks, limits);
  }
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override {
    quest_->initialize(device, layout, num_blocks, limits);
  }
  void on_keys_written(Stream& stream, const WrittenKv& written) override {
    quest_->on_keys_written(stream, written);
  }
  Selection select(Stream& stream, const SelectInput& input) override {
    SelectInput without = input;
    without.zones = {};
    return quest_->select(stream, without);
  }

 private:
  std::unique_ptr<Policy> quest_;
};

// The queries of all zones reach the policy: without them it chooses other pages.
TEST_P(DualChunkQuest, PagesAreChosenByTheQueriesOfTheirZones) {
  const EngineOptions options = with_quest(this->options());
  const auto run = [&](int64_t length, bool has_zones) {
    LlmEngine::Parts parts{.device = testing::make_test_device({}),
                           .policies = make_policies(options)};
    if (!has_zones) {
      parts.policies->wrap_decode([](std::unique_ptr<Policy> quest) {
        return std::make_unique<QuestWithoutZones>(std::move(quest));
      });
    }
    LlmEngine engine(options, std::move(parts));
    return run_jobs(engine, jobs_of({length}));
  };
  expect_all_same(run(kChunkTokens - 30, false), run(kChunkTokens - 30, true), "first chunk");
  EXPECT_NE(run(900, false)[0].logprobs[1][0].logprob, run(900, true)[0].logprobs[1][0].logprob);
}

// Offloaded steps make lists and gather what they name, even all pages.
TEST_P(DualChunkQuest, ABudgetThatCoversEverythingIsFullAttention) {
  EngineOptions full = options();
  full.max_num_seqs = 1;
  full.max_num_batched_tokens = 192;
  EngineOptions covering = with_quest(full);
  covering.sparse.topk_tokens = 1200;
  const std::vector<RequestOutput> expected = run_engine(full, all_jobs());
  expect_all_same(run_engine(covering, all_jobs()), expected, "resident");
  for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
    expect_all_same(run_engine(testing::with_offload(covering, mode), all_jobs()),
                    run_engine(testing::with_offload(full, mode), all_jobs()), "away");
  }
}

TEST_P(DualChunkQuest, TheFirstChunkHasTheBitsOfPlainAttention) {
  const std::vector<Job> jobs = jobs_of({5, 100, kChunkTokens - 20});
  for (const bool is_away : {false, true}) {
    const auto of = [&](bool has_key) {
      const EngineOptions quest = with_quest(options(has_key));
      return run_engine(is_away ? hot(quest) : quest, jobs);
    };
    expect_all_same(of(true), of(false), is_away ? "away" : "resident");
  }
}

// On a GPU products of another height round differently, and a page more or less may change the
// result without bound.
TEST_P(DualChunkQuest, AnswersDoNotDependOnPlacesCutsOrNeighbours) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: passes of other heights choose otherwise";
  for (const char* policy : {"full+quest", "full+streaming"}) {
    const EngineOptions options = with_policy(this->options(), policy);
    const std::vector<RequestOutput> expected = run_engine(options, all_jobs());
    for (const testing::Place& place : testing::sampled_places()) {
      expect_all_alike(run_engine(place.put(options), all_jobs()), expected, place.name);
    }
    expect_all_alike(run_engine(hot(options), all_jobs()), expected, "hot pages of two");
    for (const int64_t rows : {64, 1008}) {
      EngineOptions cut = options;
      cut.max_num_batched_tokens = rows;
      expect_all_alike(run_engine(cut, all_jobs()), expected, "passes of rows");
    }
    EngineOptions alone = options;
    alone.max_num_seqs = 1;
    expect_all_alike(run_engine(alone, all_jobs()), expected, "alone");
  }
}

TEST_P(DualChunkQuest, PlacesChangeNoBit) {
  testing::expect_places_change_no_bit(with_quest(options()));
}

// Steps replayed as graphs, and steps with hot pages: a graph may be older than its rows' chunk.
TEST_P(DualChunkQuest, HotPagesAndReplayedStepsChangeNoBit) {
  const std::vector<Job> jobs = jobs_of({2 * kChunkTokens - 10, kChunkTokens - 5, 900, 700});
  EngineOptions options = hot(with_quest(this->options()));
  EngineOptions gathered = options;
  gathered.kv.device_bytes = 0;
  const std::vector<RequestOutput> expected = run_engine(gathered, jobs);
  for (const bool eager : {true, false}) {
    options.enforce_eager = eager;
    LlmEngine engine(options, LlmEngine::Parts{.device = testing::make_test_device({}),
                                               .adjust_plan = testing::forced_graphs(options)});
    expect_all_same(run_jobs(engine, jobs), expected, eager ? "padded" : "replayed");
    EXPECT_GT(hot_hits(engine), 0);
  }
}

TEST_P(DualChunkQuest, DraftsOfListsChangeNoText) {
  const std::vector<Job> jobs = jobs_of({2 * kChunkTokens - 10, kChunkTokens - 5, 900});
  const std::vector<RequestOutput> expected = run_engine(options(), jobs);
  EngineOptions drafts = with_quest(options());
  drafts.speculative.method = SpeculativeMethod::kSparse;
  drafts.speculative.num_tokens = 4;
  for (const EngineOptions& place : {drafts, hot(drafts)}) {
    const auto engine = testing::make_engine(place);
    if (testing::testing_cpu() || GetParam().kv == KvCacheDtype::kAuto) {
      expect_all_alike(run_jobs(*engine, jobs), expected, "drafts");
    } else {
      run_jobs(*engine, jobs);
    }
    EXPECT_GT(engine->observations().speculation.num_accepted_tokens, 0);
  }
}

TEST_P(DualChunkQuest, SecondTurnsFindTheirPrefix) {
  const EngineOptions options = with_quest(this->options());
  LLM llm(options);
  const testing::TwoTurns turns;
  run_jobs(llm, turns.first);
  std::vector<RequestOutput> warm = run_jobs(llm, turns.second);
  EXPECT_GE(warm[0].num_cached_tokens, 560);
  std::vector<RequestOutput> cold = run_engine(options, turns.second);
  if (!testing::testing_cpu()) {  // only prefill, which reads everything, can be compared there
    for (std::vector<RequestOutput>* outputs : {&warm, &cold}) {
      outputs->front().token_ids.resize(1);
      outputs->front().logprobs.resize(1);
    }
  }
  expect_all_alike(warm, cold, "warm");
}

// Another engine finds the blocks in a store, and summarises their keys.
TEST_P(DualChunkQuest, RestartsChangeNoBit) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: stores are tested on the CPU";
  const testing::TemporaryStore store;
  EngineOptions options = hot(with_quest(this->options()));
  options.kv_store.min_tokens = 0;
  const std::vector<Job> jobs = jobs_of({700, 300});
  const std::vector<RequestOutput> without = testing::run_with_store(options, jobs);
  options = testing::with_store(options, store);
  expect_all_same(testing::run_with_store(options, jobs), without, "first");
  const std::vector<RequestOutput> warm = testing::run_with_store(options, jobs);
  expect_all_same(warm, without, "restarted");
  EXPECT_EQ(testing::sum_of_stored(warm),
            testing::storable_tokens(700) + testing::storable_tokens(300));
}

INSTANTIATE_TEST_SUITE_P(Models, DualChunkQuest, testing::dual_chunk_cases(), testing::name_of);

}  // namespace
}  // namespace sluice
