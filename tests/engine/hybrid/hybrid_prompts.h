// Prompts that share beginnings, and comparisons with an engine without prefix cache, for the tests
// of snapshots.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice::testing {

// The tiny hybrids that the device under test runs, but for the one with YaRN, whose 128 tokens are
// fewer than these tests have.
inline std::vector<std::string> hybrids() {
  std::vector<std::string> names = tiny_model_names();
  std::erase_if(names, [](const std::string& name) {
    return name.find("-hybrid") == std::string::npos || name.ends_with("-yarn");
  });
  return names;
}

inline constexpr const char* kHybrid = "qwen35-hybrid-nested";
inline constexpr int64_t kHybridBlock = 16;  // as in tiny_options
using Tokens = std::vector<int32_t>;

inline Tokens joined(Tokens first, const Tokens& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// The first `count` tokens, and `num_more` others.
inline Tokens branch(const Tokens& tokens, int64_t count, int64_t num_more, uint64_t seed) {
  return joined({tokens.begin(), tokens.begin() + count}, random_tokens(num_more, seed));
}

// Blocks that a snapshot after them can be used for by a prompt that shares `num_tokens` tokens.
inline int64_t whole(int64_t num_tokens) { return num_tokens / kHybridBlock * kHybridBlock; }

// What a prompt of that length leaves before its end.
inline int64_t before_answer(int64_t prompt_tokens) { return whole(prompt_tokens - 16); }

// Compares every answer with that of an engine without prefix cache, to which it comes alone: bit
// for bit on a CPU, and as near as passes of other rows come on a GPU.
class Compared {
 public:
  explicit Compared(const EngineOptions& options) : options_(options) {
    options_.state_cache = {};
    options_.enable_prefix_caching = false;
    plain_ = std::make_unique<LLM>(options_);
  }

  void expect_same(const std::vector<Job>& jobs, const std::vector<RequestOutput>& outputs,
                   const std::string& what) {
    ASSERT_EQ(jobs.size(), outputs.size()) << what;
    for (size_t i = 0; i < jobs.size(); ++i) {
      expect_all_alike({outputs[i]}, run_jobs(*plain_, {jobs[i]}),
                       what + ", job " + std::to_string(i), near_tie_nats(options_.model));
    }
  }

  // Runs a job in `llm` and compares; how many of its tokens were cached.
  int64_t cached(LLM& llm, const Job& job, const std::string& what) {
    const std::vector<RequestOutput> outputs = run_jobs(llm, {job});
    expect_same({job}, outputs, what);
    return outputs[0].num_cached_tokens;
  }
  int64_t cached(LLM& llm, const Tokens& prompt, const std::string& what) {
    return cached(llm, Job{prompt, sampled(24, 1)}, what);
  }

 private:
  EngineOptions options_;
  std::unique_ptr<LLM> plain_;
};

// Of the states of a sequence of kHybrid.
inline int64_t snapshot_bytes() {
  const LlmEngine engine(tiny_options(kHybrid), {.device = make_test_device()});
  return static_cast<int64_t>(engine.config().states().slot_bytes());
}

}  // namespace sluice::testing
