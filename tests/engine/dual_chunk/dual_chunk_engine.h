// Tiny models with the key of dual chunk attention, and their requests.
//
// Used by tests/engine/dual_chunk. Thread rule: host thread.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/dual_chunk/dual_chunk_config.h"
#include "io/temp_dir.h"
#include "support/run_bits.h"
#include "support/sample_of.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice::testing {

inline constexpr int32_t kChunkTokens = 256;

// A tiny model with the key. Wide: on a GPU with dummy weights and heads of 128 channels, for which
// it has kernels of their own; narrow heads take general ones.
struct Case {
  const char* name;
  const char* model;
  bool is_wide = false;
  KvCacheDtype kv = KvCacheDtype::kAuto;
};

// The model with room for several chunks, with the key or without.
inline EngineOptions long_options(const Case& of, const TempDir& dir, bool has_key) {
  EngineOptions options = tiny_options(of.model);
  copy_model(options, dir.path(), [&](nlohmann::json& config) {
    config["max_position_embeddings"] = 4096;
    if (of.is_wide && !testing_cpu()) {
      config["head_dim"] = 128;
      options.load_format = LoadFormat::kDummy;
    }
    if (!has_key) return;
    config["dual_chunk_attention_config"] =
        dual_chunk_json({.chunk = kChunkTokens + 64, .local = 64, .original = 320});
  });
  options.max_model_len = 1200;
  options.kv.cache_dtype = of.kv;
  return options;
}

inline std::vector<Job> jobs_of(std::initializer_list<int64_t> lengths) {
  std::vector<Job> jobs;
  for (const int64_t length : lengths) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(20, length)});
  }
  return jobs;
}

// Wherever KV is. Passes have the same rows, so that on a GPU, too, no bit may change.
inline void expect_places_change_no_bit(EngineOptions options) {
  options.enable_prefix_caching = false;
  options.max_num_seqs = 1;
  options.max_num_batched_tokens = 192;
  const std::vector<Job> jobs = jobs_of({kChunkTokens - 5, 2 * kChunkTokens - 3, 900});
  size_t index = 0;
  for (const int32_t block_tokens : {16, 64}) {
    options.kv.block_size = block_tokens;
    const std::vector<RequestOutput> expected = run_engine(options, jobs);
    EngineOptions eager = options;
    eager.enforce_eager = true;
    expect_all_same(run_engine(eager, jobs), expected, "eager");
    for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
      if (!in_sample(index++, 2)) continue;
      const EngineOptions away = with_offload(options, mode);
      expect_all_same(run_engine(away, jobs), expected, "away");
      EngineOptions slots = away;
      slots.kv.num_slots = 5;
      expect_all_same(run_engine(slots, jobs), expected, "slots");
      slots.kv.slot_blocks = 3;
      expect_all_same(run_engine(slots, jobs), expected, "slots of three blocks");
      EngineOptions stay = away;
      stay.kv.device_bytes = size_t{1} << 20;
      expect_all_same(run_engine(stay, jobs), expected, "blocks stay");
    }
  }
}

// A conversation of which the first prompt has 600 tokens.
struct TwoTurns {
  std::vector<Job> first = jobs_of({600});
  std::vector<Job> second = {{first[0].prompt, sampled(20, 9)}};

  TwoTurns() {
    for (const int32_t token : random_tokens(100, 3)) second[0].prompt.push_back(token);
  }
};

class DualChunkTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (testing_cpu() && GetParam().is_wide && GetParam().kv == KvCacheDtype::kAuto) {
      GTEST_SKIP() << "skipped: a CPU has one kernel for all heads";
    }
  }
  EngineOptions options(bool has_key = true) const {
    return long_options(GetParam(), has_key ? dir_ : plain_dir_, has_key);
  }

  const TempDir dir_;
  const TempDir plain_dir_;
};

inline auto dual_chunk_cases() {
  return ::testing::Values(
      Case{.name = "narrow", .model = "qwen2-group7-tied"},
      Case{.name = "wide", .model = "qwen2-group7-tied", .is_wide = true},
      Case{.name = "experts", .model = "qwen3moe-experts8-pair"},
      Case{.name = "fp8", .model = "qwen3-group2-tied", .is_wide = true, .kv = KvCacheDtype::kFp8});
}

inline std::string name_of(const ::testing::TestParamInfo<Case>& one) { return one.param.name; }

}  // namespace sluice::testing
