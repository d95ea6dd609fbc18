// What the tests of sampling share: arguments from plain parameters, and random logits.
//
// Used by tests/ops/sample. Thread rule: host thread.
#pragma once

#include <limits>
#include <random>
#include <vector>

#include "ops/op_test_util.h"
#include "ops/sample.h"

namespace sluice::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct RowParams {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  int64_t seed = 1;
  int64_t position = 0;
};

inline SampleArgs make_args(Machine& machine, const std::vector<float>& logits,
                            const std::vector<RowParams>& rows, int64_t num_top = 0) {
  const auto m = static_cast<int64_t>(rows.size());
  std::vector<float> temperature, top_p, min_p;
  std::vector<int32_t> top_k;
  std::vector<int64_t> seed, position;
  for (const RowParams& row : rows) {
    temperature.push_back(row.temperature);
    top_k.push_back(row.top_k);
    top_p.push_back(row.top_p);
    min_p.push_back(row.min_p);
    seed.push_back(row.seed);
    position.push_back(row.position);
  }
  SampleArgs args;
  args.logits = machine.tensor(logits, {m, static_cast<int64_t>(logits.size()) / m});
  args.temperature = machine.tensor(temperature, {m});
  args.top_k = machine.tensor(top_k, {m});
  args.top_p = machine.tensor(top_p, {m});
  args.min_p = machine.tensor(min_p, {m});
  args.seed = machine.tensor(seed, {m});
  args.position = machine.tensor(position, {m});
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
