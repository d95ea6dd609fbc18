// Engines with the policy of support/scoped_policy.h, on the CPU device.
//
// Used by scope_test and scored_offload_test. Thread rule: host thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "support/run_bits.h"
#include "support/scoped_policy.h"
#include "support/tiny_models.h"

namespace sluice::testing {

// A model with 2 layers, 4 query and 2 KV heads, of up to 512 positions; blocks of 16 tokens.
inline EngineOptions scoped_resident() {
  EngineOptions options = tiny_options("qwen3-group2-tied");
  options.device = "cpu";
  return options;
}

inline EngineOptions scoped_offloaded(KvOffload mode, int32_t block_tokens) {
  EngineOptions options = scoped_resident();
  options.kv.offload = mode;
  options.kv.block_size = block_tokens;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 1;
  options.kv.host_bytes = 16 << 20;
  return options;
}

inline EngineOptions in_chunks(EngineOptions options, int32_t chunk_tokens, int32_t pass_tokens) {
  options.prefill_chunk_tokens = chunk_tokens;
  options.max_num_batched_tokens = pass_tokens;
  return options;
}

inline std::unique_ptr<LlmEngine> scoped_engine(
    const EngineOptions& options, const ScopedPolicy::Options& policy,
    std::unique_ptr<Device> device = make_device("cpu", {.num_threads = 2})) {
  return std::make_unique<LlmEngine>(
      options, LlmEngine::Parts{.device = std::move(device), .policies = make_scoped(policy)});
}

inline std::vector<RequestOutput> run_scoped(const EngineOptions& options,
                                             const ScopedPolicy::Options& policy,
                                             const std::vector<Job>& jobs) {
  return run_jobs(*scoped_engine(options, policy), jobs);
}

// Fails unless `act` throws kInvalidArgument with all of `parts` in its text.
inline void expect_refused(const std::function<void()>& act,
                           const std::vector<std::string>& parts) {
  try {
    act();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace sluice::testing
