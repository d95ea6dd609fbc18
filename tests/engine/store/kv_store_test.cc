// KV from the store has the bits that the engine would compute: with the store as without, after a
// restart as before, at every border of blocks, wherever KV lives, under every policy.
#include <gtest/gtest.h>

#include "engine/dual_chunk/dual_chunk_config.h"
#include "engine/store/store_engine.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::kStoreBlock;
using testing::make_store_engine;
using testing::random_tokens;
using testing::run_with_store;
using testing::sampled;
using testing::storable_tokens;
using testing::store_options;
using testing::TemporaryStore;
using testing::with_store;

constexpr KvOffload kModes[] = {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise};

// Around every border of the first blocks, and a long one; no two begin alike.
std::vector<Job> border_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 15, 16, 17, 31, 32, 33, 48, 49, 250}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(20, length)});
  }
  return jobs;
}

void expect_stored(const std::vector<RequestOutput>& outputs, const std::vector<Job>& jobs,
                   const std::string& what) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    const int64_t expected = storable_tokens(std::ssize(jobs[i].prompt));
    EXPECT_EQ(outputs[i].num_stored_tokens, expected) << what << ", prompt " << i;
    EXPECT_EQ(outputs[i].num_cached_tokens, expected) << what << ", prompt " << i;
    EXPECT_EQ(outputs[i].num_prompt_tokens_done, std::ssize(jobs[i].prompt)) << what;
  }
}

// With and without, before and after a restart.
void check_restart(const EngineOptions& options, const std::vector<Job>& jobs,
                   const std::string& what) {
  const std::vector<RequestOutput> without = run_with_store(options, jobs);
  const TemporaryStore store;
  const EngineOptions stored = with_store(options, store);
  const std::vector<RequestOutput> cold = run_with_store(stored, jobs);
  expect_all_same(cold, without, what + ", first");
  EXPECT_EQ(testing::sum_of_stored(cold), 0) << what;
  for (int restart = 0; restart < 2; ++restart) {
    const std::vector<RequestOutput> warm = run_with_store(stored, jobs);
    expect_all_same(warm, without, what + ", restarted");
    expect_stored(warm, jobs, what);
  }
}

TEST(KvStore, RestartEqualsNoRestartAtEveryBorder) {
  for (const KvOffload mode : kModes) {
    check_restart(store_options(mode), border_jobs(), kv_offload_name(mode));
  }
}

// What one mode has written another one reads: the bytes do not depend on where KV lives.
TEST(KvStore, IsSharedByAllModes) {
  const std::vector<Job> jobs = border_jobs();
  const std::vector<RequestOutput> without = run_with_store(store_options(KvOffload::kOff), jobs);
  for (const KvOffload writer : kModes) {
    const TemporaryStore store;
    run_with_store(with_store(store_options(writer), store), jobs);
    for (const KvOffload reader : kModes) {
      const auto warm = run_with_store(with_store(store_options(reader), store), jobs);
      const std::string what =
          std::string(kv_offload_name(writer)) + " to " + kv_offload_name(reader);
      expect_all_same(warm, without, what);
      expect_stored(warm, jobs, what);
    }
  }
}

// Summaries are made anew from the keys that were read; lists are far shorter than the prompt.
TEST(KvStore, PoliciesWithSummariesReadTheSameBits) {
  for (const char* policy : {"full+quest", "streaming+quest", "full+streaming"}) {
    for (const KvOffload mode : kModes) {
      EngineOptions options = store_options(mode);
      options.sparse.policy = policy;
      options.sparse.page_tokens = 16;
      options.sparse.recent_tokens = 16;
      options.sparse.sink_tokens = 16;
      options.sparse.threshold_tokens = 0;
      if (std::string(policy).ends_with("quest")) options.sparse.topk_tokens = 32;
      check_restart(options, border_jobs(), std::string(policy) + ", " + kv_offload_name(mode));
    }
  }
}

// Blocks that stay on the device beside those of the host tier.
TEST(KvStore, ReadsBlocksBesideResidentOnes) {
  EngineOptions options = store_options(KvOffload::kChunked);
  options.kv.device_bytes = 64 << 10;
  check_restart(options, border_jobs(), "resident blocks");
}

// Scopes of several blocks, and a tail at the prompt's end that no other request may find.
TEST(KvStore, ReadsWholeScopesOnly) {
  std::vector<Job> jobs = border_jobs();
  for (const int64_t length : {127, 128, 129, 147, 148, 149, 275, 400}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(5, length)});
  }
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked}) {
    const EngineOptions options = testing::in_chunks(store_options(mode), 128, 256);
    const testing::ScopedPolicy::Options policy{.scope_tokens = 128, .tail_tokens = 20};
    const auto without = testing::run_scoped(options, policy, jobs);
    const TemporaryStore store;
    const EngineOptions stored = with_store(options, store);
    expect_all_same(testing::run_scoped(stored, policy, jobs), without, "first");
    const auto warm = testing::run_scoped(stored, policy, jobs);
    expect_all_same(warm, without, "restarted");
    for (size_t i = 0; i < jobs.size(); ++i) {
      const int64_t expected = std::max<int64_t>(std::ssize(jobs[i].prompt) - 20, 0) / 128 * 128;
      EXPECT_EQ(warm[i].num_stored_tokens, expected) << "prompt " << i;
    }
  }
}

// Loads that ran ahead for a cancelled sequence name blocks that the store fills for another one.
// No scope of its prompt was complete, so its blocks are the next ones that anyone gets.
TEST(KvStore, IsNotHiddenByLoadsOfACancelledRequest) {
  const testing::ScopedPolicy::Options policy{.scope_tokens = 128, .tail_tokens = 20};
  const std::vector<Job> job = {{random_tokens(300, 1), sampled(5, 1)}};
  for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
    const TemporaryStore store;
    EngineOptions stored = with_store(store_options(mode), store);
    if (mode == KvOffload::kChunked) stored = testing::in_chunks(stored, 512, 512);
    const auto cold = testing::run_scoped(stored, policy, job);
    const auto engine = testing::scoped_engine(stored, policy);
    const SequenceId cancelled = engine->add_request(random_tokens(40, 2), sampled(5, 1));
    engine->step();
    engine->cancel_request(cancelled);
    std::vector<RequestOutput> ended;
    testing::run_steps(*engine, 1, ended);
    const auto warm = testing::run_jobs(*engine, job);
    expect_all_same(warm, cold, kv_offload_name(mode));
    EXPECT_EQ(warm[0].num_stored_tokens, 256) << kv_offload_name(mode);
  }
}

// The chain goes on from the last block in memory: two documents with one beginning.
TEST(KvStore, GoesOnAfterCachedBlocks) {
  std::vector<int32_t> longer = random_tokens(300, 1);
  const std::vector<int32_t> shorter(longer.begin(), longer.begin() + 100);
  for (const KvOffload mode : kModes) {
    const TemporaryStore store;
    const EngineOptions stored = with_store(store_options(mode), store);
    const auto cold = run_with_store(stored, {{longer, sampled(10, 1)}});
    const auto engine = make_store_engine(stored);
    testing::run_jobs(*engine, {{shorter, sampled(1, 1)}});
    const auto warm = testing::run_jobs(*engine, {{longer, sampled(10, 1)}});
    expect_all_same(warm, cold, kv_offload_name(mode));
    EXPECT_EQ(warm[0].num_cached_tokens, 288);
    EXPECT_EQ(warm[0].num_stored_tokens, 288 - 96);
    EXPECT_EQ(engine->stats().num_stored_tokens, 288);
  }
}

// Blocks that decoding filled are found, too, as a conversation goes on after a restart.
TEST(KvStore, KeepsWhatWasGenerated) {
  for (const KvOffload mode : kModes) {
    const TemporaryStore store;
    const EngineOptions stored = with_store(store_options(mode), store);
    std::vector<int32_t> conversation = random_tokens(100, 1);
    const auto first = run_with_store(stored, {{conversation, sampled(61, 1)}});
    conversation.insert(conversation.end(), first[0].token_ids.begin(), first[0].token_ids.end());
    const std::vector<Job> second = {{conversation, sampled(10, 2)}};
    const auto warm = run_with_store(stored, second);
    EXPECT_EQ(warm[0].num_stored_tokens, 160) << kv_offload_name(mode);
    expect_all_same(warm, run_with_store(store_options(mode), second), kv_offload_name(mode));
  }
}

// With a sparse policy for decode, KV of generated tokens depends on it: neither these blocks nor
// those after them are stored, while the engine's own cache has them.
TEST(KvStore, KeepsNothingThatSparseDecodingTouched) {
  const TemporaryStore store;
  EngineOptions stored = with_store(store_options(KvOffload::kChunked), store);
  stored.sparse.policy = "full+quest";
  stored.sparse.topk_tokens = 32;
  std::vector<int32_t> conversation = random_tokens(100, 1);
  {
    const auto engine = make_store_engine(stored);
    const auto first = testing::run_jobs(*engine, {{conversation, sampled(61, 1)}});
    conversation.insert(conversation.end(), first[0].token_ids.begin(), first[0].token_ids.end());
    for (const int32_t token : random_tokens(100, 2)) conversation.push_back(token);
    const auto second = testing::run_jobs(*engine, {{conversation, sampled(1, 2)}});
    EXPECT_EQ(second[0].num_cached_tokens, 160);
  }
  EXPECT_EQ(store.blocks().size(), 6u) << "of the first 100 tokens";
}

TEST(KvStore, SaltsShareNothing) {
  const TemporaryStore store;
  const EngineOptions stored = with_store(store_options(KvOffload::kChunked), store);
  Job job{random_tokens(100, 1), sampled(5, 1)};
  job.params.cache_salt = "a";
  run_with_store(stored, {job});
  struct Case {
    const char* salt;
    int64_t num_stored;
  };
  for (const Case& one : {Case{"b", 0}, Case{"a", 96}, Case{"", 0}, Case{"", 96}}) {
    job.params.cache_salt = one.salt;
    EXPECT_EQ(run_with_store(stored, {job})[0].num_stored_tokens, one.num_stored) << one.salt;
  }
}

TEST(KvStore, WritesLongPromptsAloneAndReadsAny) {
  const TemporaryStore store;
  EngineOptions stored = with_store(store_options(KvOffload::kOff), store);
  stored.kv_store.min_tokens = 100;
  const std::vector<int32_t> document = random_tokens(100, 1);
  const std::vector<int32_t> beginning(document.begin(), document.begin() + 60);
  const auto engine = make_store_engine(stored);
  testing::run_jobs(*engine, {{beginning, sampled(1, 1)}});
  engine->flush_store();
  EXPECT_EQ(store.blocks().size(), 0u);
  testing::run_jobs(*engine, {{document, sampled(1, 1)}});
  engine->flush_store();
  EXPECT_EQ(store.blocks().size(), 6u) << "those of the short prompt, too";
  EXPECT_EQ(run_with_store(stored, {{beginning, sampled(1, 1)}})[0].num_stored_tokens, 48);
}

// Everything that changes KV changes the fingerprint.
TEST(KvStore, IsNotFoundByOtherModelsAndPolicies) {
  const TemporaryStore store;
  const std::vector<Job> jobs = {{random_tokens(100, 1), sampled(5, 1)}};
  const EngineOptions options = with_store(store_options(KvOffload::kOff), store);
  run_with_store(options, jobs);
  std::vector<EngineOptions> others(4, options);
  others[0].model = testing::tiny_options("qwen3-group4-yarn").model;
  others[1].kv.block_size = 32;
  others[2].sparse.policy = "streaming+full";
  others[3].load_format = LoadFormat::kDummy;
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_EQ(run_with_store(others[i], jobs)[0].num_stored_tokens, 0) << "option " << i;
    EngineOptions alone = others[i];
    alone.kv_store.dir.reset();
    expect_all_same(run_with_store(others[i], jobs), run_with_store(alone, jobs), "other");
  }
  EXPECT_EQ(run_with_store(options, jobs)[0].num_stored_tokens, 96);
}

// Two sizes of chunks with the same difference place keys alike, but not queries; without the
// factor of long texts scores differ. From the second layer on, keys and values follow queries.
TEST(KvStore, IsNotFoundByOtherDualChunks) {
  const testing::ChunkSizes all[] = {
      {144, 16, 144}, {160, 32, 144}, {144, 16, 160}, {272, 16, 272}, {0, 0, 0}};
  const std::vector<Job> jobs = {{random_tokens(300, 1), sampled(5, 1)}};
  const TemporaryStore store;
  const auto run = [&](const testing::ChunkSizes& sizes, bool is_stored) {
    const TempDir dir;
    EngineOptions options = store_options(KvOffload::kOff);
    testing::copy_model(options, dir.path(), [&](nlohmann::json& config) {
      if (sizes.chunk == 0) return;
      config["dual_chunk_attention_config"] = testing::dual_chunk_json(sizes);
    });
    return run_with_store(is_stored ? with_store(options, store) : options, jobs);
  };
  for (const testing::ChunkSizes& sizes : all) {
    const std::string what =
        fmt::format("chunks of {} {} {}", sizes.chunk, sizes.local, sizes.original);
    const std::vector<RequestOutput> cold = run(sizes, true);
    EXPECT_EQ(cold[0].num_stored_tokens, 0) << what;
    expect_all_same(cold, run(sizes, false), what);
  }
  for (const testing::ChunkSizes& sizes : all) {
    EXPECT_EQ(run(sizes, true)[0].num_stored_tokens, 288);
  }
}

// The plan has the memory that the store takes.
TEST(KvStore, TakesWhatThePlanSays) {
  for (const KvOffload mode : kModes) {
    for (const char* policy : {"full", "full+quest"}) {
      const TemporaryStore store;
      EngineOptions options = with_store(store_options(mode), store);
      options.sparse.policy = policy;
      const auto engine = make_store_engine(options);
      const MemoryPlan& plan = engine->plan().memory;
      EXPECT_EQ(engine->device().peak_allocated_bytes(MemoryKind::kDevice),
                plan.device_used_bytes());
      EXPECT_EQ(engine->device().peak_allocated_bytes(MemoryKind::kPinned),
                plan.pinned_used_bytes());
    }
  }
}

// What observations count is in the files: six blocks of a prompt of 100 tokens.
TEST(KvStore, IsObserved) {
  const TemporaryStore store;
  const EngineOptions options = with_store(store_options(KvOffload::kOff), store);
  const std::vector<Job> jobs = {{random_tokens(100, 1), sampled(1, 1)}};
  for (const bool is_first : {true, false}) {
    const auto engine = make_store_engine(options);
    testing::run_jobs(*engine, jobs);
    EXPECT_TRUE(engine->flush_store());
    const KvStoreObservations seen = engine->observations().kv_store.value();
    int64_t file_bytes = 0;
    for (const StoredFile& file : store.blocks())
      file_bytes += static_cast<int64_t>(file.num_bytes);
    EXPECT_EQ(store.blocks().size(), 6u);
    EXPECT_EQ(seen.num_stored_tokens, is_first ? 0 : 96);
    EXPECT_EQ(seen.read_bytes, is_first ? 0 : file_bytes);
    EXPECT_EQ(seen.written_bytes, is_first ? file_bytes : 0);
    EXPECT_EQ(seen.num_blocks_written, is_first ? 6 : 0);
    EXPECT_EQ(seen.num_blocks_skipped + seen.num_bad_files, 0);
  }
}

TEST(KvStore, IsOffUnlessAskedFor) {
  EngineOptions options = store_options(KvOffload::kOff);
  const auto engine = make_store_engine(options);
  testing::run_jobs(*engine, {{random_tokens(100, 1), sampled(5, 1)}});
  EXPECT_EQ(engine->stats().store_written_bytes, 0);
  EXPECT_FALSE(engine->observations().kv_store.has_value());
  EXPECT_FALSE(engine->is_storing());
  options.kv_store.max_bytes = 1 << 20;
  EXPECT_THROW(make_store_engine(options), Error) << "bytes of no directory";
  const TemporaryStore store;
  options = with_store(options, store);
  options.enable_prefix_caching = false;
  EXPECT_THROW(make_store_engine(options), Error);
}

}  // namespace
}  // namespace sluice
