// Random texts that share beginnings, in engines of random sizes, with and without drafts: many at
// once, cancelled, preempted, pinned, salted, stored and read again. Every answer has the bits of
// one that is computed alone.
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_prompts.h"
#include "engine/store/store_engine.h"
#include "sluice/inspect.h"
#include "support/sample_of.h"

namespace sluice {
namespace {

using testing::branch;
using testing::Compared;
using testing::Job;
using testing::kHybrid;
using testing::random_tokens;
using testing::sampled;
using testing::snapshot_bytes;
using testing::Tokens;

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : random_(seed), options_(random_options()) {}

  // Returns how many tokens were cached.
  int64_t run() {
    Compared compared(plain_options());
    int64_t num_cached = 0;
    for (int restart = 0; restart < 2; ++restart) {
      const std::unique_ptr<LlmEngine> engine = testing::make_store_engine(options_);
      for (int round = 0; round < 5; ++round) {
        const std::vector<Job> jobs = random_jobs();
        compared.expect_same(jobs, run_round(*engine, jobs), "round " + std::to_string(round));
        if (::testing::Test::HasFatalFailure()) return 0;
      }
      engine->blocks().check_invariants({});
      num_cached += engine->stats().num_cached_tokens + engine->stats().num_stored_tokens;
    }
    return num_cached;
  }

 private:
  int64_t pick(int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random_);
  }

  // 24 to 60 blocks, of which the longest request takes 16; 1 to 12 snapshots.
  EngineOptions random_options() {
    EngineOptions options = testing::tiny_options(kHybrid);
    const MemoryPlan plan = plan_memory(options);
    const size_t block_bytes = *options.kv.cache_bytes / static_cast<size_t>(plan.num_blocks);
    const size_t kv_bytes = block_bytes * static_cast<size_t>(pick(24, 60));
    const auto mode = static_cast<KvOffload>(pick(1, 3));
    if (mode == KvOffload::kOff) {
      options.kv.cache_bytes = kv_bytes;
    } else {
      options = testing::with_offload(options, mode);
      options.kv.cache_bytes.reset();
      options.kv.host_bytes = kv_bytes;
    }
    options.max_model_len = 256;
    options.max_num_seqs = static_cast<int32_t>(pick(1, 5));
    if (mode != KvOffload::kLayerwise && pick(0, 1) == 0) {
      options.prefill_chunk_tokens = static_cast<int32_t>(pick(1, 6) * 16);
    }
    options.state_cache.snapshot_tokens = pick(1, 8) * 16;
    options.state_cache.max_bytes = static_cast<size_t>(pick(1, 12) * snapshot_bytes());
    if (pick(0, 2) > 0) {
      options = testing::with_store(options, store_);
      options.kv_store.min_tokens = pick(0, 120);
    }
    draft_randomly(options);
    return options;
  }

  // The texts rarely say anything again: drafts by single tokens are mostly wrong, and those of a
  // policy mostly right.
  void draft_randomly(EngineOptions& options) {
    options.speculative.method = static_cast<SpeculativeMethod>(pick(0, 2));
    if (options.speculative.method == SpeculativeMethod::kNone) return;
    options.speculative.num_tokens = static_cast<int32_t>(pick(1, 9));
    if (options.speculative.method == SpeculativeMethod::kNgram) {
      options.speculative.prompt_lookup_min = 1;
      return;
    }
    options.sparse.policy = "full+quest";
    options.sparse.page_tokens = options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
    options.sparse.topk_tokens = 64;
  }

  EngineOptions plain_options() const {
    EngineOptions options = testing::tiny_options(kHybrid);
    options.max_model_len = 256;
    return options;
  }

  // Of one of three texts the beginning, and something else.
  std::vector<Job> random_jobs() {
    std::vector<Job> jobs(static_cast<size_t>(pick(1, 5)));
    for (Job& job : jobs) {
      const Tokens text = random_tokens(200, static_cast<uint64_t>(pick(0, 2)));
      job.prompt = branch(text, pick(1, 200), pick(0, 20), static_cast<uint64_t>(pick(0, 3)));
      job.params = sampled(static_cast<int32_t>(pick(1, 30)), pick(1, 2));
      if (pick(0, 5) == 0) job.params.cache_salt = "salt";
    }
    return jobs;
  }

  // Runs all jobs, beside some that are cancelled and a pin that comes and goes.
  std::vector<RequestOutput> run_round(LlmEngine& engine, const std::vector<Job>& jobs) {
    std::optional<SequenceId> gone;
    if (pick(0, 1) == 0) gone = engine.add_request(random_jobs()[0].prompt, sampled(30, 1));
    pin(engine);
    std::vector<int64_t> ids;
    std::vector<RequestOutput> outputs(jobs.size());
    for (const Job& job : jobs) {
      ids.push_back(engine.add_request(job.prompt, job.params).value);
      for (int64_t i = pick(0, 4); i > 0 && engine.has_unfinished(); --i)
        take(engine, ids, outputs);
    }
    if (gone) engine.drop_request(*gone);
    while (engine.has_unfinished()) take(engine, ids, outputs);
    return outputs;
  }

  void pin(LlmEngine& engine) {
    engine.kv().pins().release("pin");
    if (pick(0, 2) > 0) return;
    const Tokens text = random_tokens(200, static_cast<uint64_t>(pick(0, 2)));
    engine.add_pin("pin", branch(text, pick(1, 120), 0, 0), sampled(1, 1));
  }

  static void take(LlmEngine& engine, const std::vector<int64_t>& ids,
                   std::vector<RequestOutput>& outputs) {
    for (RequestOutput& output : engine.step()) {
      const auto found = std::ranges::find(ids, output.request_id);
      if (found == ids.end() || !output.finished()) continue;
      outputs[static_cast<size_t>(found - ids.begin())] = std::move(output);
    }
  }

  std::mt19937_64 random_;
  testing::TemporaryStore store_;
  EngineOptions options_;
};

TEST(RandomSnapshots, ChangeNoBit) {
  int64_t num_cached = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    if (!testing::in_sample(seed, 3)) continue;
    SCOPED_TRACE("seed " + std::to_string(seed));
    num_cached += RandomRun(seed).run();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(num_cached, 1000);
}

}  // namespace
}  // namespace sluice
