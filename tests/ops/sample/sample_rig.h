// What the tests of sampling share: arguments from plain parameters, and random logits.
//
// Used by tests/ops/sample. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "ops/op_test_util.h"
#include "ops/sample.h"

namespace sluice::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A SampleRow of random draws, unless a test says otherwise.
struct RowParams {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int64_t seed = 1;
  int64_t position = 0;

  operator SampleRow() const { return {temperature, top_k, top_p, min_p, seed, position, -1}; }
};

inline SampleArgs make_args(Machine& machine, const std::vector<float>& logits,
                            const std::vector<RowParams>& rows, int64_t num_top = 0) {
  const auto m = static_cast<int64_t>(rows.size());
  SampleArgs args;
  args.logits = machine.tensor(logits, {m, static_cast<int64_t>(logits.size()) / m});
  args.rows = machine.tensor(DType::kU8, {m, sizeof(SampleRow)});
  std::copy(rows.begin(), rows.end(), args.rows.data<SampleRow>());
  args.token_ids = machine.tensor(DType::kI32, {m});
  args.logprobs = machine.tensor(DType::kF32, {m});
  if (num_top > 0) {
    args.top_token_ids = machine.tensor(DType::kI32, {m, num_top});
    args.top_logprobs = machine.tensor(DType::kF32, {m, num_top});
  }
  return args;
}

inline std::vector<float> random_logits(int64_t count, uint32_t seed, float deviation = 3.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> logits;
  for (int64_t i = 0; i < count; ++i) logits.push_back(normal(generator));
  return logits;
}

inline void run(Machine& machine, const SampleArgs& args) {
  sample(machine.stream(), args);
  machine.synchronize();
}

}  // namespace sluice::testing
