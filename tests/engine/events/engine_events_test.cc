// What whole engines tell routers: under pressure, from the KV store, with drafts, resident and
// offloaded; and which options exclude it.
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/events/cache_event_reader.h"
#include "engine/llm_engine.h"
#include "engine/store/store_engine.h"
#include "events/zmq_library.h"
#include "io/expect_error.h"
#include "sluice/inspect.h"
#include "support/run_bits.h"

namespace sluice {
namespace {

using testing::EventReader;
using testing::Job;
using testing::KeepingSink;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;
using testing::store_options;

constexpr int32_t kEventBlock = testing::kStoreBlock;

// Prompts of which some begin alike, longer than a pass.
std::vector<Job> shared_jobs() {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 9; ++i) {
    std::vector<int32_t> prompt = random_tokens(70, i % 3);
    const std::vector<int32_t> rest = random_tokens(40 + 9 * static_cast<int64_t>(i), 100 + i);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    jobs.push_back({prompt, sampled(30, static_cast<int64_t>(i))});
    if (i % 4 == 3) jobs.back().params.cache_salt = "mine";
  }
  return jobs;
}

// An engine, and what a router knows of it.
class Told {
 public:
  explicit Told(const EngineOptions& options)
      : engine_(options, LlmEngine::Parts{.device = make_device("cpu", {.num_threads = 2}),
                                          .events = std::make_unique<KeepingSink>(kept_)}) {}

  // Runs the jobs, and expects the router to know all that is findable.
  EventReader& run(const std::vector<Job>& jobs) {
    run_jobs(engine_, jobs);
    for (const CacheEventBatch& batch : kept_.batches) EXPECT_GT(batch.time_s, 1.7e9);
    media_ = {};
    for (const CacheEventBatch& batch : kept_.batches) {
      for (const CacheEvent& event : batch.events) {
        if (const auto* stored = std::get_if<BlocksStored>(&event)) media_.insert(stored->medium);
      }
    }
    kept_.deliver(reader_);
    std::set<uint64_t> hashes = reader_.hashes();
    EXPECT_EQ(hashes.size(), engine_.blocks().findable_prefixes().size());
    return reader_;
  }
  LlmEngine& engine() { return engine_; }
  const std::set<KvMedium>& media() const { return media_; }

 private:
  KeepingSink::Kept kept_;
  EventReader reader_;
  std::set<KvMedium> media_;
  LlmEngine engine_;
};

TEST(EngineEvents, AreEqualInEqualEnginesWhereverKvIs) {
  const std::vector<Job> jobs = shared_jobs();
  std::set<uint64_t> expected;
  for (const KvOffload mode :
       {KvOffload::kOff, KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
    EngineOptions options = store_options(mode);
    options.kv.block_size = kEventBlock;
    Told told(options);
    const std::set<uint64_t> hashes = told.run(jobs).hashes();
    EXPECT_GT(hashes.size(), 50U);
    if (expected.empty()) expected = hashes;
    EXPECT_EQ(hashes, expected);
    EXPECT_EQ(told.media(), std::set{KvMedium::kCpu}) << "the memory of the CPU device";
  }
}

TEST(EngineEvents, FollowEvictionAndPreemption) {
  EngineOptions options = store_options(KvOffload::kOff);
  options.kv.block_size = kEventBlock;
  constexpr size_t kBlockBytes = 2 * 2 * 2 * kEventBlock * 32 * 2;  // two layers, two heads of 32
  options.kv.cache_bytes = 24 * kBlockBytes;
  options.max_model_len = 256;
  Told told(options);
  std::vector<Job> jobs = shared_jobs();
  for (Job& job : jobs) job.params.max_tokens = 60;
  for (int round = 0; round < 3; ++round) told.run(jobs);
  const EventReader& reader = told.run(jobs);
  EXPECT_GT(reader.num_removed(), 100);
  EXPECT_GT(told.engine().stats().num_preemptions, 0);
  ASSERT_TRUE(told.engine().stats().kv_events.has_value());
  EXPECT_GT(told.engine().stats().kv_events->num_sent, 0);
}

// Blocks that were read count as computed ones do.
TEST(EngineEvents, TellOfWhatComesFromTheStore) {
  const std::vector<Job> jobs = shared_jobs();
  const testing::TemporaryStore store;
  const EngineOptions options = testing::with_store(store_options(KvOffload::kChunked), store);
  Told first(options);
  const std::set<uint64_t> hashes = first.run(jobs).hashes();
  ASSERT_TRUE(first.engine().flush_store());
  Told second(options);
  EXPECT_EQ(second.run(jobs).hashes(), hashes);
  EXPECT_GT(second.engine().stats().num_stored_tokens, 500);
}

TEST(EngineEvents, TellOfAcceptedDraftsAlone) {
  std::vector<Job> jobs;
  for (int64_t i = 0; i < 4; ++i) {
    jobs.push_back({std::vector<int32_t>(60, static_cast<int32_t>(i)), sampled(80, i)});
    jobs.back().params.temperature = 0;
  }
  EngineOptions options = store_options(KvOffload::kOff);
  Told plain(options);
  options.speculative.method = SpeculativeMethod::kNgram;
  Told drafting(options);
  EXPECT_EQ(drafting.run(jobs).hashes(), plain.run(jobs).hashes());
  EXPECT_GT(drafting.engine().stats().speculation->num_accepted_tokens, 0);
}

TEST(EngineEvents, NeedAPrefixCache) {
  EngineOptions options = store_options(KvOffload::kOff);
  options.kv_events.endpoint = "tcp://127.0.0.1:*";
  options.enable_prefix_caching = false;
  EXPECT_TRUE(contains(expect_error(ErrorCode::kInvalidArgument, [&] { plan_memory(options); }),
                       "prefix caching is off"));
  options.kv_events.endpoint = {};
  options.kv_events.replay_endpoint = "tcp://127.0.0.1:*";
  EXPECT_TRUE(contains(expect_error(ErrorCode::kInvalidArgument, [&] { plan_memory(options); }),
                       "but there are no kv_events"));
}

// States of hybrids have no event, and without them KV is of no use.
TEST(EngineEvents, AreRefusedForHybrids) {
  EngineOptions options = testing::tiny_options("qwen35-hybrid-nested");
  options.kv_events.endpoint = "tcp://127.0.0.1:*";
  EXPECT_TRUE(contains(expect_error(ErrorCode::kUnsupported, [&] { plan_memory(options); }),
                       "events have no word for the recurrent states"));
}

// The engine that is served, with sockets: it says where they are.
TEST(EngineEvents, GoToAnEndpoint) {
  if (!has_zmq()) GTEST_SKIP() << "no libzmq";
  EngineOptions options = store_options(KvOffload::kOff);
  options.kv_events.endpoint = "tcp://127.0.0.1:*";
  options.kv_events.replay_endpoint = "tcp://127.0.0.1:*";
  LlmEngine engine(options, LlmEngine::Parts{.device = make_device("cpu", {.num_threads = 2})});
  const std::vector<std::string> endpoints = engine.kv().events().endpoints();
  ASSERT_EQ(endpoints.size(), 2U);
  const std::string note = engine.reports().notes().back();
  EXPECT_EQ(note, "KV events: " + endpoints[0] + ", replays on " + endpoints[1]);
  run_jobs(engine, shared_jobs());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (engine.stats().kv_events->num_sent == 0 && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_GT(engine.stats().kv_events->num_sent, 0);
}

}  // namespace
}  // namespace sluice
