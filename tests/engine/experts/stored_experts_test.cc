// Mixtures of experts with a KV store: what comes from disk has the bits of what stayed in memory,
// and experts in host memory write and read the files of those on the device.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/store/store_engine.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::Job;
using testing::storable_tokens;

// Where experts are: on the device, or in host memory with places for so many of them.
struct ExpertHome {
  const char* name;
  WeightsOffload offload = WeightsOffload::kOff;
  int32_t num_places = 0;
};
constexpr ExpertHome kHomes[] = {{"on the device"},
                                 {"streamed", WeightsOffload::kExperts, 0},
                                 {"cached", WeightsOffload::kExperts, 5}};

EngineOptions options_in(KvOffload mode) {
  EngineOptions options = testing::tiny_options("qwen3moe-experts8-pair");
  if (mode != KvOffload::kOff) options = testing::with_offload(options, mode);
  options.kv.block_size = testing::kStoreBlock;
  options.kv_store.min_tokens = 0;
  return options;
}

std::unique_ptr<LlmEngine> engine_at(const ExpertHome& home, EngineOptions options) {
  options.weights_offload = home.offload;
  if (home.offload == WeightsOffload::kExperts) options.experts_device_bytes = 0;
  LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2})};
  if (home.num_places > 0) {
    parts.adjust_plan = [=](EnginePlan& plan) { plan.experts.num_places = home.num_places; };
  }
  return std::make_unique<LlmEngine>(options, std::move(parts));
}

// One at a time, and a restart between writer and reader. Rows of a prompt that was found in memory
// are those of one that is read, so that on a GPU, too, no bit may change.
TEST(StoredExperts, EveryHomeReadsWhatAnyHomeWrote) {
  const std::vector<Job> jobs = {{testing::random_tokens(201, 1), testing::sampled(20, 1)}};
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
    const EngineOptions options = options_in(mode);
    for (const ExpertHome& writer : kHomes) {
      const testing::TemporaryStore store;
      const EngineOptions stored = testing::with_store(options, store);
      std::vector<RequestOutput> computed, found;
      {
        const auto engine = engine_at(writer, stored);
        computed = testing::run_jobs(*engine, jobs);
        found = testing::run_jobs(*engine, jobs);
      }
      EXPECT_EQ(found[0].num_stored_tokens, 0);
      EXPECT_EQ(found[0].num_cached_tokens, storable_tokens(201));
      testing::expect_all_same(computed, testing::run_jobs(*engine_at(writer, options), jobs),
                               "without a store");
      for (const ExpertHome& reader : kHomes) {
        const bool is_next = &reader == kHomes + (&writer - kHomes + 1) % std::ssize(kHomes);
        if (mode != KvOffload::kOff && !is_next) continue;
        const auto restored = testing::run_jobs(*engine_at(reader, stored), jobs);
        const std::string what =
            fmt::format("{}: {}, then {}", kv_offload_name(mode), writer.name, reader.name);
        EXPECT_EQ(restored[0].num_stored_tokens, storable_tokens(201)) << what;
        testing::expect_all_same(restored, found, what);
        testing::expect_all_alike(restored, computed, what);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
