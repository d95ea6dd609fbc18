// Checks of attention: the numbers of the double-precision reference within a derived bound, or the
// bits of another run.
//
// Used by the attention tests and nowhere else. Thread rule: host thread.
#pragma once

#include "attention_problem.h"
#include "ops/reference/attention.h"

namespace sluice::testing {

// Largest rounding error of a score. The dot product has head_dim products and additions (two
// roundings each without FMA) of terms whose absolute values sum to `magnitude`.
inline double score_error(const AttentionProblem& problem, double magnitude) {
  return (2.0 * problem.shape().head_dim + 2.0) * kUnitF32 * magnitude * problem.scale();
}

// Runs the problem in one call (gathered or not) and compares output and log-sum-exp with the
// reference.
//
// The bound: every weight p is off by a relative 2 * score error (its own and that of the maximum's
// e^-max, which cancels in the quotient only in exact arithmetic), 4 units of exp (two roundings of
// 2 ulp: p and alpha), one unit for each of the additions; on AMX and on GPUs, which round p to
// bf16, also by half a bf16 unit. Then the output is rounded to bf16.
inline void expect_matches_reference(const AttentionProblem& problem, const AttentionRun& run) {
  Machine machine(run.num_threads);
  AttentionArgs args = problem.calls(machine, run).front();
  args.out = machine.tensor(DType::kBF16, {args.q.dim(0), args.q.dim(1), args.q.dim(2)});
  args.state = problem.new_state(machine);
  attend(machine, args, run.isa);
  machine.synchronize();
  const std::vector<double> expected = reference::attention(args);
  Machine scratch(1);
  const std::vector<double> magnitude =
      reference::attention(problem.with_absolute_values().calls(scratch, run).front());
  // |q| has deviation 1.5, |k| 1: the sum of head_dim products is below 2 * head_dim here.
  const double score = score_error(problem, 2.0 * problem.shape().head_dim);
  const int32_t context = args.batch.max_kv_tokens;
  const double tokens = std::min(context, run.kv_limit.value_or(context));
  const bool rounds_p = run.isa >= CpuIsa::kAmx || !testing_cpu();
  const double weight_error =
      2.0 * score + (2.0 * tokens + 64.0) * kUnitF32 + (rounds_p ? kUnitBF16 : 0.0);
  std::vector<double> bound;
  for (size_t i = 0; i < expected.size(); ++i) {
    bound.push_back(kUnitBF16 * std::abs(expected[i]) * 1.01 + weight_error * magnitude[i] + 1e-30);
  }
  // Errors of bf16 rounding are spread evenly: their mean square is a third of the bound's square.
  const double bf16_power = kUnitBF16 * kUnitBF16 * (rounds_p ? 1.0 : 0.5);
  expect_close(args.out, expected, bound, bf16_power);

  args.last = false;
  if (auto* tiles = std::get_if<MaskedTiles>(&args.selection)) {
    tiles->columns = {};  // they belong to the call with `last`
  }
  attend(machine, args, run.isa);
  machine.synchronize();
  const std::vector<double> lse = reference::attention_log_sum_exp(args);
  for (size_t i = 0; i < lse.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const double actual = element(args.state.max, index) + std::log(element(args.state.sum, index));
    if (std::isinf(lse[i])) {
      EXPECT_EQ(actual, lse[i]);
    } else {
      EXPECT_NEAR(actual, lse[i], score + (tokens + 64.0) * kUnitF32) << "row and head " << i;
    }
  }
}

inline void expect_same_bits(const AttentionResult& a, const AttentionResult& b) {
  EXPECT_TRUE(a.out == b.out) << "outputs differ";
  EXPECT_TRUE(a.acc == b.acc) << "state.acc differs";
  EXPECT_TRUE(a.max == b.max) << "state.max differs";
  EXPECT_TRUE(a.sum == b.sum) << "state.sum differs";
}

// Prefill without history, prefill after a history, and decode. No length is a multiple of a tile
// of 16 tokens.
inline std::vector<SequenceShape> mixed_sequences() {
  return {{.num_rows = 45, .first_pos = 0},
          {.num_rows = 1, .first_pos = 131},
          {.num_rows = 21, .first_pos = 90},
          {.num_rows = 1, .first_pos = 0}};
}

}  // namespace sluice::testing
