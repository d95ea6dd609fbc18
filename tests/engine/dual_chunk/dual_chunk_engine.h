// Tiny models with the key of dual chunk attention, and their requests.
//
// Used by tests/engine/dual_chunk. Thread rule: host thread.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "io/file.h"
#include "io/json.h"
#include "io/temp_dir.h"
#include "support/run_bits.h"
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
  for (const auto& entry : std::filesystem::directory_iterator(options.model)) {
    std::filesystem::copy(entry.path(), dir.path(),
                          std::filesystem::copy_options::overwrite_existing);
  }
  nlohmann::json config = read_json_file(dir.path() / "config.json");
  config["max_position_embeddings"] = 4096;
  if (of.is_wide && !testing_cpu()) {
    config["head_dim"] = 128;
    options.load_format = LoadFormat::kDummy;
  }
  if (has_key) {
    config["dual_chunk_attention_config"] = {{"chunk_size", kChunkTokens + 64},
                                             {"local_size", 64},
                                             {"original_max_position_embeddings", 320}};
  }
  write_file(dir.path() / "config.json", config.dump());
  options.model = dir.path();
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
      Case{.name = "fp8", .model = "qwen3-group2-tied", .is_wide = true, .kv = KvCacheDtype::kFp8});
}

inline std::string name_of(const ::testing::TestParamInfo<Case>& one) { return one.param.name; }

}  // namespace sluice::testing
