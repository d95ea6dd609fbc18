// The KV store on the device under test: what comes from disk has the bits of what stayed in
// memory. An answer that finds its prompt in memory computes the same rows as one that reads it, so
// a GPU gives the same bits, too.
#include <gtest/gtest.h>

#include "engine/store/store_engine.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::make_test_device;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;
using testing::storable_tokens;
using testing::TemporaryStore;
using testing::with_store;

struct Case {
  const char* name;
  KvOffload mode;
  const char* policy;
  size_t device_bytes;
};

class KvStoreOnDevice : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Modes, KvStoreOnDevice,
    ::testing::Values(Case{"Off", KvOffload::kOff, "full", 0},
                      Case{"OffQuest", KvOffload::kOff, "full+quest", 0},
                      Case{"Chunked", KvOffload::kChunked, "full", 0},
                      Case{"ChunkedQuest", KvOffload::kChunked, "full+quest", 0},
                      Case{"ChunkedBesideResidents", KvOffload::kChunked, "full", 64 << 10},
                      Case{"Layerwise", KvOffload::kLayerwise, "full", 0}),
    [](const auto& one) { return one.param.name; });

EngineOptions options_of(const Case& one) {
  EngineOptions options = testing::store_options(one.mode);
  options.device = testing::test_device_spec();
  options.sparse.policy = one.policy;
  if (one.device_bytes > 0) options.kv.device_bytes = one.device_bytes;
  if (std::string(one.policy) == "full") return options;
  options.sparse.topk_tokens = 32;
  options.sparse.page_tokens = 16;
  options.sparse.recent_tokens = 16;
  options.sparse.sink_tokens = 16;
  options.sparse.threshold_tokens = 0;
  return options;
}

std::unique_ptr<LlmEngine> make_engine(const EngineOptions& options) {
  return std::make_unique<LlmEngine>(
      options, LlmEngine::Parts{.device = make_test_device({.num_threads = 2})});
}

// One at a time, and one engine for each: batches are the same, and no rate is known that would
// make computing look faster.
TEST_P(KvStoreOnDevice, GivesTheBitsOfMemory) {
  const EngineOptions options = options_of(GetParam());
  for (const int64_t length : {17, 33, 64, 250}) {
    const TemporaryStore store;
    const EngineOptions stored = with_store(options, store);
    const std::vector<Job> jobs = {{random_tokens(length, 1), sampled(20, length)}};
    const std::string what = "prompt of " + std::to_string(length);
    std::vector<RequestOutput> computed, found;
    {
      const auto engine = make_engine(stored);
      computed = run_jobs(*engine, jobs);
      found = run_jobs(*engine, jobs);
    }
    const auto restored = run_jobs(*make_engine(stored), jobs);
    EXPECT_EQ(found[0].num_cached_tokens, storable_tokens(length)) << what;
    EXPECT_EQ(found[0].num_stored_tokens, 0) << what;
    EXPECT_EQ(restored[0].num_stored_tokens, storable_tokens(length)) << what;
    expect_all_same(restored, found, what);
    expect_all_alike(restored, computed, what);
  }
}

// A pool and a tier have the same bytes: what one engine wrote from device memory another one reads
// into host memory, and the other way round.
TEST(KvStoreModes, ShareADirectoryOnDevice) {
  const std::vector<Job> jobs = {{random_tokens(250, 1), sampled(20, 1)}};
  for (const bool begins_resident : {true, false}) {
    const Case resident{"", KvOffload::kOff, "full", 0};
    const Case offloaded{"", KvOffload::kChunked, "full", 0};
    const EngineOptions writer = options_of(begins_resident ? resident : offloaded);
    const EngineOptions reader = options_of(begins_resident ? offloaded : resident);
    const TemporaryStore store;
    const auto computed = run_jobs(*make_engine(with_store(writer, store)), jobs);
    const auto restored = run_jobs(*make_engine(with_store(reader, store)), jobs);
    EXPECT_EQ(restored[0].num_stored_tokens, storable_tokens(250));
    expect_all_alike(restored, computed, begins_resident ? "to the host" : "to the device");
  }
}

// Pages that decode chose, by the counters on the device: 39 steps, 2 layers, 2 KV heads, of 2
// pages each that are neither the first nor the newest.
TEST(PageReadsOnDevice, AreCounted) {
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked}) {
    EngineOptions options = options_of({"", mode, "full+quest", 0});
    EXPECT_FALSE(make_engine(options)->reports().page_reads().counts.present()) << "not asked for";
    options.count_page_reads = true;
    const auto engine = make_engine(options);
    std::vector<int32_t> before, after;
    engine->reports().copy_page_reads(before);
    run_jobs(*engine, {{random_tokens(200, 1), sampled(40, 1)}});
    engine->reports().copy_page_reads(after);
    int64_t num_reads = 0;
    for (size_t i = 0; i < after.size(); ++i) num_reads += after[i] - before[i];
    EXPECT_EQ(num_reads, 39 * 2 * 2 * 2) << kv_offload_name(mode);
  }
}

}  // namespace
}  // namespace sluice
