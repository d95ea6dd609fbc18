// Experts in host memory: tokens and log-probabilities have the bits of a run with all weights on
// the device, whatever the sizes of ring and cache, and beside all that moves KV.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "engine/timeline_ring.h"
#include "io/expect_error.h"
#include "io/temp_dir.h"
#include "model/copied_model.h"
#include "model/experts/expert_cache.h"
#include "model/weights.h"
#include "sluice/inspect.h"
#include "support/fp8_models.h"
#include "support/integer_models.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::Job;

constexpr const char* kModel = "qwen3moe-experts8-pair";  // 2 of 8 experts in 3 of 4 layers
constexpr int32_t kNumExperts = 8;
constexpr int32_t kNumLayers = 3;

std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 3; ++i) {
    jobs.push_back({testing::random_tokens(3 + 45 * static_cast<int64_t>(i), i),
                    testing::sampled(12, static_cast<int64_t>(i))});
  }
  return jobs;
}

EngineOptions on_host(EngineOptions options, size_t cache_bytes) {
  options.weights_offload = WeightsOffload::kExperts;
  options.experts_device_bytes = cache_bytes;
  return options;
}

// An engine whose ring and cache have these sizes, whatever the options give.
LlmEngine engine_of(const EngineOptions& options, int32_t num_slots, int32_t num_places) {
  return LlmEngine(options, {.device = testing::make_test_device({.num_threads = 2}),
                             .adjust_plan = [=](EnginePlan& plan) {
                               plan.experts.num_slots = num_slots;
                               plan.experts.num_places = num_places;
                             }});
}

std::vector<RequestOutput> run_sizes(const EngineOptions& options, int32_t num_slots,
                                     int32_t num_places, const std::vector<Job>& jobs) {
  LlmEngine engine = engine_of(on_host(options, 0), num_slots, num_places);
  return testing::run_jobs(engine, jobs);
}

TEST(HostExperts, EverySizeOfRingAndCacheHasTheSameBits) {
  const EngineOptions options = testing::tiny_options(kModel);
  const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
  for (int32_t num_slots = 1; num_slots <= kNumLayers; ++num_slots) {
    for (const int32_t num_places : {0, 2, 3, 4, 5, 7, 8}) {
      testing::expect_all_same(run_sizes(options, num_slots, num_places, make_jobs()), expected,
                               fmt::format("{} slots, {} places", num_slots, num_places));
    }
  }
}

TEST(HostExperts, ChunksBatchesAndThreadsHaveTheSameBits) {
  const auto expect_same = [](const char* what, const auto& change) {
    EngineOptions options = testing::tiny_options(kModel);
    change(options);
    const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
    for (const int32_t num_places : {0, 2, 6}) {
      testing::expect_all_same(run_sizes(options, 2, num_places, make_jobs()), expected,
                               fmt::format("{}, {} places", what, num_places));
    }
  };
  expect_same("alone", [](EngineOptions& o) { o.max_num_seqs = 1; });
  expect_same("one thread", [](EngineOptions& o) { o.num_threads = 1; });
  expect_same("chunks of 7", [](EngineOptions& o) { o.prefill_chunk_tokens = 7; });
  expect_same("no graphs", [](EngineOptions& o) { o.enforce_eager = true; });
}

TEST(HostExperts, OffloadedKvBesideThemHasTheSameBits) {
  for (const char* mode : {"chunked", "layerwise"}) {
    const EngineOptions options =
        testing::with_offload(testing::tiny_options(kModel), testing::kv_offload_named(mode));
    const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
    for (const int32_t num_places : {0, 2, 8}) {
      testing::expect_all_same(run_sizes(options, 2, num_places, make_jobs()), expected,
                               fmt::format("{}, {} places", mode, num_places));
    }
  }
}

TEST(HostExperts, DraftsBesideThemHaveTheSameBits) {
  for (const char* mode : {"off", "chunked"}) {
    EngineOptions options = testing::tiny_options(kModel);
    if (mode != std::string("off")) {
      options = testing::with_offload(options, testing::kv_offload_named(mode));
    }
    options.speculative.method = SpeculativeMethod::kNgram;
    options.speculative.num_tokens = 3;
    const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
    for (const int32_t num_places : {0, 4, 8}) {
      testing::expect_all_same(run_sizes(options, 2, num_places, make_jobs()), expected,
                               fmt::format("{}, {} places", mode, num_places));
    }
  }
}

// Drafts by lists of pages run the same layers, experts included, and share their places.
TEST(HostExperts, DraftsOfASparsePolicyBesideThemHaveTheSameBits) {
  for (const SpeculativeMethod method :
       {SpeculativeMethod::kSparse, SpeculativeMethod::kNgramSparse}) {
    EngineOptions options = testing::tiny_options(kModel);
    const std::vector<RequestOutput> plain = testing::run_engine(options, make_jobs());
    options.speculative.method = method;
    options.speculative.num_tokens = 3;
    options.sparse.policy = "full+quest";
    options.sparse.page_tokens = 16;
    options.sparse.sink_tokens = 16;
    options.sparse.recent_tokens = 16;
    options.sparse.topk_tokens = 32;
    const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
    const std::string what(speculative_method_name(method));
    testing::expect_all_alike(expected, plain, what);
    for (const int32_t num_places : {0, 4, 8}) {
      testing::expect_all_same(run_sizes(options, 2, num_places, make_jobs()), expected,
                               fmt::format("{}, {} places", what, num_places));
    }
  }
}

// Decode steps as a GPU replays them.
TEST(HostExperts, ReplayedStepsHaveTheSameBits) {
  EngineOptions options = on_host(testing::tiny_options(kModel), 0);
  const auto run = [&](bool graphs, int32_t num_places) {
    options.enforce_eager = !graphs;
    LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2}),
                               .adjust_plan = [&](EnginePlan& plan) {
                                 testing::forced_graphs(options)(plan);
                                 plan.experts.num_places = num_places;
                               }});
    std::vector<RequestOutput> outputs = testing::run_jobs(engine, make_jobs());
    // Three rows are padded to four, which go in parts of one, two or four.
    EXPECT_EQ(engine.stats().num_graph_launches > 0, graphs && num_places > 0) << num_places;
    return outputs;
  };
  const std::vector<RequestOutput> expected = run(false, 0);
  for (const int32_t num_places : {0, 2, 5, 8}) {
    testing::expect_all_same(run(true, num_places), expected, fmt::format("{}", num_places));
  }
}

// The pass stops after some layers, whose loads are ahead of it, and the next one begins at the
// first again.
TEST(HostExperts, ACancelledPassLeavesNoTrace) {
  const EngineOptions options = testing::tiny_options(kModel);
  const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
  LlmEngine engine = engine_of(on_host(options, 0), 2, 2);
  for (int num_parts = 1; num_parts < 7; ++num_parts) {
    int num_heard = 0;
    bool has_given_up = false;
    const PassWatch watch{
        .on_progress = [&](int64_t) { ++num_heard; },
        .should_cancel = [&] { return has_given_up = has_given_up || num_heard >= num_parts; }};
    const SequenceId id = engine.add_request(testing::random_tokens(90, 7), testing::sampled(4, 1));
    engine.step(&watch);
    EXPECT_TRUE(has_given_up || num_parts > 5) << num_parts;
    engine.cancel_request(id);
    engine.step();
    testing::expect_all_same(testing::run_jobs(engine, make_jobs()), expected,
                             fmt::format("after {} parts", num_parts));
  }
}

// ---- Formats and families ---------------------------------------------------------------------

void expect_same_on_host(EngineOptions options, const std::string& what) {
  const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
  for (const int32_t num_places : {0, 2, 4}) {
    testing::expect_all_same(run_sizes(options, 2, num_places, make_jobs()), expected,
                             fmt::format("{}, {} places", what, num_places));
  }
}

TEST(HostExperts, CodedWeightsHaveTheSameBits) {
  for (const WeightScales scales : {WeightScales::kRows, WeightScales::kBlocks}) {
    const TempDir dir;
    testing::write_fp8_model(kModel, scales, dir.path());
    EngineOptions options = testing::tiny_options(kModel);
    options.model = dir.path();
    expect_same_on_host(options, "FP8");
  }
  const TempDir dir;
  testing::write_integer_model(kModel, {.bits = 4}, dir.path());
  EngineOptions options = testing::tiny_options(kModel);
  options.model = dir.path();
  expect_same_on_host(options, "4 bits");
}

TEST(HostExperts, EveryFamilyHasTheSameBits) {
  for (const std::string& name : testing::tiny_model_names()) {
    if (name.find("experts") == std::string::npos || name.find("experts4") != std::string::npos) {
      continue;  // of four experts two rows choose all
    }
    EngineOptions options = testing::tiny_options(name);
    const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
    const size_t cache_bytes = 8 << 20;
    for (const size_t bytes : {size_t{0}, cache_bytes}) {
      testing::expect_all_same(testing::run_engine(on_host(options, bytes), make_jobs()), expected,
                               name);
    }
  }
}

// Each rank has its part of every expert, and a ring and places of its own.
TEST(HostExperts, RanksHaveTheSameBits) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: no kernel for half of its experts' width";
  EngineOptions options = testing::tiny_options(kModel);
  options.tensor_parallel_size = 2;
  const std::vector<RequestOutput> expected = testing::run_engine(options, make_jobs());
  for (const size_t cache_bytes : {size_t{0}, size_t{1} << 20}) {
    testing::expect_all_same(testing::run_engine(on_host(options, cache_bytes), make_jobs()),
                             expected, "two ranks");
  }
}

// ---- Plan, counts, errors ---------------------------------------------------------------------

std::vector<ExpertLayer> layers_of(const EngineOptions& options) {
  const auto device = testing::make_test_device();
  return Weights::plan(read_model_config(ModelDirectory(options.model)), *device).experts;
}

size_t entry(const MemoryPlan& plan, const std::string& name, const std::string& memory) {
  for (const MemoryPlanEntry& e : plan.entries) {
    if (e.name == name && e.memory == memory) return e.bytes;
  }
  return 0;
}

TEST(HostExperts, AnEngineTakesWhatThePlanSaysAndAStepAllocatesNothing) {
  const EngineOptions options = testing::tiny_options(kModel);
  const std::vector<ExpertLayer> layers = layers_of(options);
  const size_t five_places = ExpertCache::device_bytes(layers, 5);
  for (const size_t bytes : {size_t{0}, five_places}) {
    for (const char* mode : {"off", "chunked"}) {
      EngineOptions offloaded = on_host(options, bytes);
      if (mode != std::string("off")) {
        offloaded = testing::with_offload(offloaded, testing::kv_offload_named(mode));
      }
      LlmEngine engine(offloaded, {.device = testing::make_test_device({.num_threads = 2})});
      const MemoryPlan& plan = engine.plan().memory;
      EXPECT_EQ(engine.plan().experts.num_places, bytes == 0 ? 0 : 5);
      EXPECT_EQ(entry(plan, "expert cache", "device"), bytes);
      EXPECT_EQ(entry(plan, "expert ring", "device"), 2 * layers.front().bytes());
      EXPECT_EQ(entry(plan, "experts", "pinned"), kNumLayers * layers.front().bytes());
      if (!testing::testing_cpu()) continue;  // a GPU's plan leaves out what libraries take
      EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice), plan.device_used_bytes());
      EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kPinned), plan.pinned_used_bytes());
      const int64_t before = engine.device().num_allocations();
      testing::run_jobs(engine, {{testing::random_tokens(40, 1), testing::sampled(20, 1)}});
      EXPECT_EQ(engine.device().num_allocations(), before);
    }
  }
}

// With a place for each expert a row's choice is fetched once; without one whole layers flow.
TEST(HostExperts, CountsSayWhereExpertsCameFrom) {
  const EngineOptions options = testing::tiny_options(kModel);
  const std::vector<ExpertLayer> layers = layers_of(options);
  const std::vector<Job> jobs{{testing::random_tokens(2, 1), testing::sampled(40, 1)}};
  LlmEngine cached = engine_of(on_host(options, 0), 2, kNumExperts);
  testing::run_jobs(cached, jobs);
  const ExpertObservations counts = cached.observations().experts.value();
  EXPECT_EQ(counts.num_hits + counts.num_misses, (2 + 39) * 2 * kNumLayers);
  EXPECT_LE(counts.num_misses, kNumExperts * kNumLayers);
  EXPECT_GT(counts.num_misses, kNumLayers);
  EXPECT_EQ(counts.fetched_bytes,
            counts.num_misses * static_cast<int64_t>(layers.front().expert_bytes()));
  EXPECT_EQ(counts.streamed_bytes, 0);
  const ExpertObservations of_steps = cached.stats().experts.value();
  EXPECT_EQ(of_steps.num_hits, counts.num_hits);
  EXPECT_EQ(of_steps.num_misses, counts.num_misses);
  EXPECT_EQ(of_steps.fetched_bytes, counts.fetched_bytes);
  LlmEngine streamed = engine_of(on_host(options, 0), 2, 0);
  testing::run_jobs(streamed, jobs);
  const ExpertObservations flow = streamed.observations().experts.value();
  EXPECT_EQ(flow.num_hits + flow.num_misses, 0);
  // Of 40 passes, and the two layers that the last one loads ahead.
  EXPECT_EQ(flow.streamed_bytes,
            (40 * kNumLayers + 2) * static_cast<int64_t>(layers.front().bytes()));
  EXPECT_EQ(streamed.stats().experts.value().streamed_bytes, flow.streamed_bytes);
  EXPECT_FALSE(LlmEngine(options, {.device = testing::make_test_device()})
                   .observations()
                   .experts.has_value());
}

bool mentions(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return contains(line, part); });
}

// Experts of petabytes beside few other weights.
TEST(HostExperts, WhatCannotBePinnedNamesTheOption) {
  const TempDir dir;
  EngineOptions options = testing::tiny_options(kModel);
  testing::copy_model(options, dir.path(), [](nlohmann::json& config) {
    config["num_local_experts"] = 4096;
    config["moe_intermediate_size"] = 1 << 20;
  });
  const auto device = testing::make_test_device();
  const ModelConfig config = read_model_config(ModelDirectory(options.model));
  const std::string error = expect_error(ErrorCode::kDoesNotFit, [&] {
    const Weights weights(config, *device, ExpertPlace::kPinned);
  });
  for (const char* part : {"pinned", "left", "weights_offload 'experts' keeps the experts there",
                           "take a model of smaller weights", "or 'off' on a device"}) {
    EXPECT_TRUE(contains(error, part));
  }
  EXPECT_EQ(device->allocated_bytes(MemoryKind::kPinned), 0u);
  EXPECT_EQ(device->allocated_bytes(MemoryKind::kDevice), 0u) << "it keeps what it had taken";
}

// The row that docs/offload.md names: copies of gate and up and of down, which wait for "drained";
// compute waits for "filled".
TEST(HostExperts, TheTimelineHasTheirTransfers) {
  TimelineRing timeline;
  {
    LlmEngine engine(on_host(testing::tiny_options(kModel), 0),
                     {.device = testing::make_test_device({.num_threads = 2, .trace = &timeline})});
    testing::run_jobs(engine, {{testing::random_tokens(90, 1), testing::sampled(5, 1)}});
  }  // streams hand over their last spans
  const auto rows = timeline.newest(int64_t{3600} * 1'000'000'000);
  const auto spans_of = [&](const std::string& stream, const std::string& name) {
    std::vector<TraceSpan> spans;
    for (const TimelineRing::Row& row : rows) {
      if (row.stream_name != stream) continue;
      std::ranges::copy_if(row.spans, std::back_inserter(spans),
                           [&](const TraceSpan& span) { return span.op_name == name; });
    }
    return spans;
  };
  const std::vector<TraceSpan> copies = spans_of("slots of experts", "copy h2d");
  // Of five passes, and the two layers that the last one loads ahead.
  EXPECT_EQ(std::ssize(copies), (5 * kNumLayers + 2) * 2);
  EXPECT_FALSE(spans_of("slots of experts", "wait").empty());
  EXPECT_FALSE(spans_of("compute", "wait").empty());
  const int64_t slack_ns = testing::testing_cpu() ? 0 : 1'000'000;  // as in cuda_stream_test
  for (size_t i = 1; i < copies.size(); ++i) {
    EXPECT_LE(copies[i - 1].end_ns, copies[i].begin_ns + slack_ns) << "the link has one queue";
  }
}

// Of the shape of Qwen3-30B-A3B the weights are 57 GiB, of which experts are 54.
TEST(HostExperts, AutoOffloadsWhatDoesNotFit) {
  constexpr size_t kGiB = size_t{1} << 30;
  EngineOptions options;
  options.model = (testing::source_dir() / "models/shapes/qwen3-30b-a3b").string();
  options.max_model_len = 32768;
  options.max_num_seqs = 4;
  const auto plan_on = [&](size_t gpu_gib) {
    return plan_memory(options, {.gpu_bytes = gpu_gib * kGiB, .host_bytes = 128 * kGiB});
  };
  const MemoryPlan large = plan_on(80);
  EXPECT_TRUE(large.fits) << large.remedy;
  EXPECT_EQ(entry(large, "experts", "pinned"), 0u);
  const MemoryPlan small = plan_on(24);
  EXPECT_TRUE(small.fits) << small.remedy;
  EXPECT_TRUE(mentions(small.warnings, "weights_offload is experts"));
  EXPECT_EQ(entry(small, "experts", "pinned"), size_t{48} * 128 * 3 * 2048 * 768 * 2);
  EXPECT_EQ(entry(small, "expert ring", "device"), size_t{2} * 128 * 3 * 2048 * 768 * 2);
  EXPECT_TRUE(mentions(small.notes, "experts of each layer have a place on the device"));
  EXPECT_TRUE(mentions(small.notes, "the experts of all layers arrive in "));
  // KV has what it asks for, and the places what is left.
  EXPECT_EQ(small.max_model_len, 32768);
  EXPECT_GT(entry(small, "expert cache", "device"), 4 * kGiB);
  EXPECT_LE(small.device_used_bytes(), small.device_budget_bytes);
  EXPECT_GT(small.device_used_bytes(), small.device_budget_bytes - kGiB);
  options.weights_offload = WeightsOffload::kOff;
  EXPECT_TRUE(contains(plan_on(24).remedy, "--weights-offload experts would be enough"));
  options.weights_offload = WeightsOffload::kAuto;
  options.experts_device_bytes = 4 * kGiB;
  EXPECT_LE(entry(plan_on(24), "expert cache", "device"), 4 * kGiB);
  EXPECT_TRUE(mentions(plan_on(80).warnings, "experts_device_bytes: no effect"));
}

TEST(HostExperts, OptionsThatCannotBeFollowedAreNamed) {
  EngineOptions options = testing::tiny_options(kModel);
  const auto error_of = [](const EngineOptions& o) {
    return expect_error(ErrorCode::kInvalidArgument, [&] { plan_memory(o); });
  };
  EXPECT_TRUE(contains(error_of(on_host(options, 100)), "experts_device_bytes is 100 bytes"));
  options.weights_offload = WeightsOffload::kOff;
  options.experts_device_bytes = 1 << 20;
  EXPECT_TRUE(contains(error_of(options), "weights_offload 'off' keeps all experts on the device"));
  EngineOptions dense = testing::tiny_options("qwen3-group2-tied");
  dense.weights_offload = WeightsOffload::kExperts;
  EXPECT_TRUE(contains(error_of(dense), "the model has none"));
  dense.weights_offload = WeightsOffload::kAuto;
  dense.experts_device_bytes = 1 << 20;
  EXPECT_TRUE(contains(error_of(dense), "the model has no experts"));
}

}  // namespace
}  // namespace sluice
