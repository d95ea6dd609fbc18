// Engines that speculate, and requests with known answers, for the tests of speculation.
//
// Used by tests/engine/speculation. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "engine/speculation/hostile_drafts.h"
#include "support/run_bits.h"
#include "support/sample_of.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice::testing {

inline constexpr const char* kSpeculationModel = "qwen3-group2-tied";

inline EngineOptions speculative(SpeculativeMethod method, int32_t num_tokens) {
  EngineOptions options = tiny_options(kSpeculationModel);
  options.speculative.method = method;
  options.speculative.num_tokens = num_tokens;
  if (method == SpeculativeMethod::kNgram) return options;
  options.sparse.policy = "full+quest";
  options.sparse.page_tokens = 16;
  options.sparse.sink_tokens = 16;
  options.sparse.recent_tokens = 16;
  options.sparse.topk_tokens = 32;
  return options;
}

inline EngineOptions offloaded(EngineOptions options, KvOffload mode, int32_t block_tokens) {
  options = with_offload(std::move(options), mode);
  options.kv.block_size = block_tokens;
  if (mode != KvOffload::kChunked) return options;
  options.prefill_chunk_tokens = 64;
  options.max_num_batched_tokens = 128;
  return options;
}

inline constexpr size_t kBlockBytes =
    size_t{2} * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // of 16 tokens

// Every place of KV, as a name and what it makes of options.
struct Place {
  const char* name;
  std::function<EngineOptions(EngineOptions)> put;
};

inline std::vector<Place> places() {
  return {
      {"resident", [](const EngineOptions& o) { return o; }},
      {"blocks of 64",
       [](EngineOptions o) {
         o.kv.block_size = 64;
         return o;
       }},
      {"chunked", [](const EngineOptions& o) { return offloaded(o, KvOffload::kChunked, 16); }},
      {"chunked, 64", [](const EngineOptions& o) { return offloaded(o, KvOffload::kChunked, 64); }},
      {"layerwise", [](const EngineOptions& o) { return offloaded(o, KvOffload::kLayerwise, 16); }},
      {"some blocks stay",
       [](EngineOptions o) {
         o = offloaded(o, KvOffload::kChunked, 16);
         o.kv.device_bytes = 9 * kBlockBytes;
         return o;
       }},
      {"hot pages",  // of drafts; without lists, blocks that stay
       [](EngineOptions o) {
         o = offloaded(o, KvOffload::kChunked, 16);
         o.kv.device_bytes = 24 * kBlockBytes;
         return o;
       }},
      {"all blocks stay", [](EngineOptions o) {
         o = offloaded(o, KvOffload::kChunked, 16);
         o.kv.host_bytes = 200 * kBlockBytes;
         o.kv.device_bytes = 240 * kBlockBytes;
         return o;
       }}};
}

// Those of which a sanitized build runs two or three.
inline std::vector<Place> sampled_places() { return sample_of(places(), 3); }

// On a GPU without those of other blocks than `options`: they begin at other tokens of a shared
// prefix, and products of another height round otherwise.
inline std::vector<Place> comparable_places(const EngineOptions& options) {
  std::vector<Place> all = places();
  std::erase_if(all, [&](const Place& place) {
    return !testing_cpu() && place.put(options).kv.block_size != options.kv.block_size;
  });
  return all;
}

inline std::unique_ptr<LlmEngine> make_engine(const EngineOptions& options,
                                              std::unique_ptr<DraftSource> source = nullptr,
                                              ForcedAcceptance forced = nullptr) {
  LlmEngine::Parts parts{.device = make_test_device({.num_threads = 2})};
  parts.draft_source = std::move(source);
  parts.forced_acceptance = std::move(forced);
  return std::make_unique<LlmEngine>(options, std::move(parts));
}

// The place of this name.
inline Place place_of(std::string_view name) {
  const std::vector<Place> all = places();
  return *std::ranges::find_if(all, [&](const Place& place) { return place.name == name; });
}

// Prompts around block borders; greedy, sampled, with penalties and with biases.
inline std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 15, 16, 33, 61, 64, 130, 200}) {
    Job job{random_tokens(length, static_cast<uint64_t>(length)), sampled(40, length)};
    if (length == 15) job.params.temperature = 0;
    if (length == 33) job.params.frequency_penalty = 0.5f;
    if (length == 16) job.params.repetition_penalty = 1.3f;
    if (length == 61) job.params.logit_bias = {{7, 2.0f}, {8, -3.0f}};
    if (length == 64) job.params.max_tokens = 3;
    if (length == 130) job.params.temperature = 0.8f;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

class SpeculationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    jobs_ = make_jobs();
    reference_ = run_engine(tiny_options(kSpeculationModel), jobs_);
    texts_ = texts_of(jobs_, reference_);
  }

  // Right at the positions that `is_right` names.
  static std::unique_ptr<DraftSource> known(KnownTexts::IsRight is_right) {
    return std::make_unique<KnownTexts>(texts_, std::move(is_right));
  }
  static std::unique_ptr<DraftSource> always_right() {
    return known([](int64_t) { return true; });
  }
  // Right about three times of four.
  static std::unique_ptr<DraftSource> mostly_right() {
    return known([](int64_t position) { return scramble(position) % 4 != 0; });
  }

  static inline std::vector<Job> jobs_;
  static inline std::vector<RequestOutput> reference_;
  static inline std::vector<std::vector<int32_t>> texts_;
};

}  // namespace sluice::testing
