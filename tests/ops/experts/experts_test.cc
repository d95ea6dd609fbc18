// Mixtures of experts: the router and the chosen MLPs, with the kernels of every ISA.
//
// Double precision reveals a wrong expert, share or edge; forced ties, another choice than the
// lowest index; rows alone against rows in a batch, on other numbers of threads, breaches of
// invariant 7. Experts that nobody chooses and experts that everybody chooses are the ends of the
// sort.
#include "ops/experts/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/experts/coded_experts.h"
#include "ops/op_test_util.h"
#include "ops/packed_weights.h"
#include "ops/reference/experts.h"

namespace sluice::testing {
namespace {

struct Routed {
  std::vector<float> probabilities;
  std::vector<int32_t> experts;
  std::vector<float> shares;
};

// Routes rows with these logits, which are bf16: row i of x is 1 in column i, and the router has
// the logits of row i there.
Routed route(const std::vector<float>& logits, int64_t num_experts, int64_t k, bool normalize,
             int num_threads = 2) {
  Machine machine(num_threads);
  const int64_t m = std::ssize(logits) / num_experts;
  const int64_t hidden = (m + 7) / 8 * 8;
  std::vector<BFloat16> x(static_cast<size_t>(m * hidden));
  std::vector<BFloat16> router(static_cast<size_t>(num_experts * hidden));
  for (int64_t i = 0; i < m; ++i) {
    x[static_cast<size_t>(i * hidden + i)] = BFloat16(1.0f);
    for (int64_t e = 0; e < num_experts; ++e) {
      router[static_cast<size_t>(e * hidden + i)] =
          BFloat16(logits[static_cast<size_t>(i * num_experts + e)]);
    }
  }
  const RouteExpertsArgs args{.x = machine.tensor(x, {m, hidden}),
                              .router = pack(machine, router, num_experts, hidden),
                              .scores = machine.tensor(DType::kF32, {m, num_experts}),
                              .experts = machine.tensor(DType::kI32, {m, k}),
                              .shares = machine.tensor(DType::kF32, {m, k}),
                              .normalize = normalize};
  route_experts(machine.stream(), args);
  machine.synchronize();
  return {values_of<float>(args.scores), values_of<int32_t>(args.experts),
          values_of<float>(args.shares)};
}

std::vector<float> random_logits(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(BFloat16(normal(generator)));
  return values;
}

TEST(RouteExperts, MatchesDoublePrecision) {
  for (const auto& [num_experts, k] :
       {std::pair{1, 1}, {2, 2}, {8, 2}, {60, 4}, {128, 8}, {256, 8}, {512, 10}}) {
    for (const auto& [num_rows, normalize] :
         {std::pair{1, false}, {3, true}, {4, false}, {16, true}, {200, false}, {200, true}}) {
      const std::vector<float> logits = random_logits(num_rows * num_experts, 5);
      const Routed got = route(logits, num_experts, k, normalize);
      const auto expected = reference::route_experts(logits, num_experts, k, normalize);
      EXPECT_EQ(got.experts, expected.experts) << num_experts;
      // The sum over all experts is one of f32, whose error grows with their number.
      const double bound = 1e-6 * std::max(1.0, num_experts / 128.0);
      for (size_t i = 0; i < logits.size(); ++i) {
        ASSERT_NEAR(got.probabilities[i], expected.probabilities[i], bound) << num_experts;
      }
      for (size_t i = 0; i < got.shares.size(); ++i) {
        ASSERT_NEAR(got.shares[i], expected.shares[i], bound) << num_experts;
      }
    }
  }
}

// Sums over many columns, and the same bits for a row beside others.
TEST(RouteExperts, LogitsAreProductsOfTheirRow) {
  constexpr int64_t kRows = 16, kExperts = 75, kHidden = 2568;
  Machine machine(2);
  const std::vector<BFloat16> x = random_bf16(kRows * kHidden, 1);
  const std::vector<BFloat16> weight = random_bf16(kExperts * kHidden, 2, 0.1f);
  const PackedWeight router = pack(machine, weight, kExperts, kHidden);
  std::vector<float> logits;
  for (int64_t i = 0; i < kRows * kExperts; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < kHidden; ++c) {
      sum += static_cast<double>(
                 static_cast<float>(x[static_cast<size_t>(i / kExperts * kHidden + c)])) *
             static_cast<float>(weight[static_cast<size_t>(i % kExperts * kHidden + c)]);
    }
    logits.push_back(static_cast<float>(sum));
  }
  const auto expected = reference::route_experts(logits, kExperts, 4, true);
  std::vector<float> whole;
  for (const int64_t m : {kRows, int64_t{1}, int64_t{2}, int64_t{5}, int64_t{9}}) {
    const std::vector<BFloat16> rows(x.begin(), x.begin() + m * kHidden);
    const RouteExpertsArgs args{.x = machine.tensor(rows, {m, kHidden}),
                                .router = router,
                                .scores = machine.tensor(DType::kF32, {m, kExperts}),
                                .experts = machine.tensor(DType::kI32, {m, 4}),
                                .shares = machine.tensor(DType::kF32, {m, 4}),
                                .normalize = true};
    route_experts(machine.stream(), args);
    machine.synchronize();
    std::vector<float> got = values_of<float>(args.scores);
    if (whole.empty()) whole = got;
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], whole[i]) << m;
      ASSERT_NEAR(got[i], expected.probabilities[i], 1e-5) << m;
    }
  }
}

TEST(RouteExperts, OfEqualsTheLowestIndexComesFirst) {
  const Routed got = route({1, 3, 3, 3, 2, 3, 0, 2}, 8, 5, true);
  EXPECT_EQ(got.experts, (std::vector<int32_t>{1, 2, 3, 5, 4}));
  EXPECT_EQ(route(std::vector<float>(12, 0.5f), 6, 3, false).experts,
            (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
}

// Whatever a model computes, the choice is k different experts that exist.
TEST(RouteExperts, NotANumberStillChoosesExperts) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(route({nan, 1, 2, nan}, 4, 3, true).experts.size(), 3u);
  for (const std::vector<float>& logits :
       {std::vector<float>{nan, 1, 2, nan}, {nan, nan, nan, nan}, {infinity, 1, infinity, 0}}) {
    std::vector<int32_t> experts = route(logits, 4, 4, true).experts;
    std::ranges::sort(experts);
    EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 2, 3}));
  }
  EXPECT_EQ(route({-infinity, 1, -infinity, 0}, 4, 4, false).experts,
            (std::vector<int32_t>{1, 3, 0, 2}));
}

struct Sizes {
  int64_t num_experts;
  int64_t k;
  int64_t hidden;
  int64_t intermediate;
};

// Random weights, and rows whose experts and shares a test chooses.
struct Problem {
  Sizes sizes;
  reference::ExpertInput input;
  WeightFormat format;  // of all weights, but
  std::optional<WeightFormat> down_format = std::nullopt;
};

Problem random_problem(const Sizes& sizes, int64_t m, uint32_t seed) {
  const int64_t width = sizes.hidden * sizes.intermediate * sizes.num_experts;
  Problem problem{.sizes = sizes,
                  .input = {.x = random_bf16(m * sizes.hidden, seed),
                            .experts = {},
                            .shares = {},
                            .gate = random_bf16(width, seed + 1, 0.1f),
                            .up = random_bf16(width, seed + 2, 0.1f),
                            .down = random_bf16(width, seed + 3, 0.1f),
                            .shared = {},
                            .shared_gate = {},
                            .m = m,
                            .k = sizes.k,
                            .hidden = sizes.hidden,
                            .intermediate = sizes.intermediate}};
  const auto chosen = reference::route_experts(random_logits(m * sizes.num_experts, seed + 4),
                                               sizes.num_experts, sizes.k, true);
  problem.input.experts = chosen.experts;
  problem.input.shares.assign(chosen.shares.begin(), chosen.shares.end());
  return problem;
}

// Gate, then up, of each expert; or down alone.
PackedExperts pack_experts(Machine& machine, const Problem& problem, std::vector<BFloat16> first,
                           std::vector<BFloat16> second, int64_t num_rows, int64_t num_cols) {
  const Sizes& sizes = problem.sizes;
  const bool is_pair = !second.empty();
  const int64_t all_rows = is_pair ? 2 * num_rows : num_rows;
  WeightFormat format = is_pair ? problem.format : problem.down_format.value_or(problem.format);
  if (format.num_orders > 0) format.num_orders = is_pair ? 2 : 1;
  PackedExperts experts{
      .num_experts = static_cast<int32_t>(sizes.num_experts),
      .stride_bytes = packed_weight_bytes(machine.device(), all_rows, num_cols, format)};
  experts.first = {
      .data = machine.allocate(experts.stride_bytes * static_cast<size_t>(sizes.num_experts)),
      .num_rows = all_rows,
      .num_cols = num_cols,
      .format = format};
  for (int64_t e = 0; e < sizes.num_experts; ++e) {
    const auto pack_at = [&](std::vector<BFloat16>& values, int64_t row_begin) {
      BFloat16* const matrix = values.data() + e * num_rows * num_cols;
      const PackedWeight expert = experts.expert(e);
      if (stores_integers(format)) {
        return pack_integers(machine, matrix, expert, row_begin, num_rows);
      }
      if (stores_e4m3(format)) return pack_codes(machine, matrix, expert, row_begin, num_rows);
      if (stores_gguf(format)) return pack_gguf(machine, matrix, expert, row_begin, num_rows);
      pack_weight(machine.stream(), {.src = TensorView(matrix, DType::kBF16, {num_rows, num_cols}),
                                     .dst = expert,
                                     .row_begin = row_begin});
    };
    pack_at(first, 0);
    if (is_pair) pack_at(second, num_rows);
  }
  machine.synchronize();
  return experts;
}

// Rows [begin, end) of the problem.
std::vector<BFloat16> run(const Problem& problem, CpuIsa isa, int64_t begin, int64_t end,
                          int num_threads = 2) {
  Machine machine(num_threads);
  const reference::ExpertInput& in = problem.input;
  const int64_t m = end - begin;
  const auto part = [&](const auto& values, int64_t width) {
    return std::vector(values.begin() + begin * width, values.begin() + end * width);
  };
  const ExpertSizes sizes{.num_rows = m,
                          .num_slots = in.k,
                          .num_experts = problem.sizes.num_experts,
                          .hidden = in.hidden,
                          .intermediate = in.intermediate};
  Arena plan;
  cut_expert_scratch(plan, sizes);
  Arena arena(machine.poisoned(plan.used_bytes()), plan.used_bytes());
  ExpertMlpArgs args{
      .x = machine.tensor(part(in.x, in.hidden), {m, in.hidden}),
      .experts = machine.tensor(part(in.experts, in.k), {m, in.k}),
      .shares = machine.tensor(part(in.shares, in.k), {m, in.k}),
      .gate_up = pack_experts(machine, problem, in.gate, in.up, in.intermediate, in.hidden),
      .down = pack_experts(machine, problem, in.down, {}, in.hidden, in.intermediate),
      .shared = {},
      .shared_gate = {},
      .scratch = cut_expert_scratch(arena, sizes),
      .out = machine.tensor(DType::kBF16, {m, in.hidden})};
  if (!in.shared.empty()) {
    args.shared = machine.tensor(part(in.shared, in.hidden), {m, in.hidden});
    args.shared_gate = machine.tensor(part(in.shared_gate, 1), {m, 1});
  }
  expert_mlp(machine.stream(), args);  // for the checks of its contract
  if (testing_cpu()) cpu::CpuOps(isa).expert_mlp(machine.stream(), args);
  machine.synchronize();
  return values_of<BFloat16>(args.out);
}

std::vector<uint16_t> bits_of(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> bits;
  for (const BFloat16 value : values) bits.push_back(value.bits);
  return bits;
}

// Whether a GPU may round the rows that it multiplies to e4m3, too: many rows of such sizes.
bool may_be_quantized(const Problem& problem) {
  return !testing_cpu() && stores_e4m3(problem.format) &&
         problem.input.m > kIndependentExpertRows && problem.sizes.hidden % kScaleGroup == 0 &&
         problem.sizes.intermediate % kScaleGroup == 0;
}

// Rounding gate, up and their product to bf16 costs at most half a unit each; silu's slope is below
// 1.1, and sums in f32 add far less. e4m3 has an error of 2.6 % of a number on average; a scale of
// another group or expert would be wrong by a factor of two or more.
void expect_exact(const Problem& problem, CpuIsa isa, const std::string& what) {
  SCOPED_TRACE(what + " " + kernels_name(isa));
  std::vector<BFloat16> got = run(problem, isa, 0, problem.input.m);
  const auto expected = reference::expert_mlp(problem.input);
  std::vector<double> bound;
  for (size_t i = 0; i < expected.value.size(); ++i) {
    const double unit = may_be_quantized(problem) ? 0x1p-3 : kUnitBF16;
    bound.push_back(unit * (4 * expected.magnitude[i] + std::abs(expected.value[i])) + 1e-6);
  }
  expect_close(TensorView(reinterpret_cast<std::byte*>(got.data()), DType::kBF16,
                          {problem.input.m, problem.input.hidden}),
               expected.value, bound, may_be_quantized(problem) ? 4e-3 : 4e-5);
}

// A GPU takes sizes that are multiples of 8.
std::vector<Sizes> all_sizes() {
  if (!testing_cpu()) return {{8, 2, 64, 48}, {16, 1, 40, 16}, {3, 3, 96, 136}, {128, 8, 256, 72}};
  return {{8, 2, 64, 48}, {5, 3, 50, 37}, {16, 1, 33, 16}, {3, 3, 96, 130}};
}

Problem coded_problem(WeightFormat format, const Sizes& sizes, int64_t m,
                      std::optional<WeightFormat> down_format = std::nullopt) {
  Problem problem = random_problem(sizes, m, 7);
  problem.format = format;
  problem.down_format = down_format;
  for (auto* weights : {&problem.input.gate, &problem.input.up}) {
    if (!stores_codes(format)) continue;
    round_to(format, *weights, sizes.intermediate, sizes.hidden);
  }
  const WeightFormat of_down = down_format.value_or(format);
  if (stores_codes(of_down)) {
    round_to(of_down, problem.input.down, sizes.hidden, sizes.intermediate);
  }
  return problem;
}

// Each expert has scales, and orders, of its own, wherever its weights begin. On a GPU few rows and
// many have kernels of their own.
TEST(ExpertMlp, MatchesDoublePrecisionWithCodes) {
  std::vector<WeightFormat> formats = {WeightFormat::kE4m3Rows, WeightFormat::kE4m3Groups};
  formats.push_back({.numbers = WeightNumbers::kUint4, .group_cols = 32});
  formats.push_back({.numbers = WeightNumbers::kUint4, .group_cols = 32, .num_orders = 1});
  formats.push_back({.numbers = WeightNumbers::kUint4});
  formats.push_back({.numbers = WeightNumbers::kUint8, .group_cols = 32});
  formats.push_back({.numbers = WeightNumbers::kUint8, .num_orders = 1});
  for (const CpuIsa isa : runnable_isas()) {
    for (const WeightFormat format : formats) {
      for (const int64_t m : {1, 50, 300}) {
        expect_exact(coded_problem(format, {8, 2, 64, 48}, m), isa,
                     fmt::format("{}, {} rows", weight_format_name(format), m));
      }
    }
    for (const WeightFormat format : {WeightFormat::kE4m3Blocks, WeightFormat::kE4m3Rows}) {
      for (const int64_t m : {3, 20, 40, 300}) {
        expect_exact(coded_problem(format, {4, 2, 256, 128}, m), isa,
                     fmt::format("{}, 128 columns, {} rows", weight_format_name(format), m));
      }
    }
    for (const int64_t m : {20, 70}) {
      expect_exact(coded_problem(WeightFormat::kE4m3Blocks, {3, 2, 1152, 384}, m), isa,
                   "long rows");
    }
  }
}

// A GGUF file chooses the formats of an expert's matrices by tensor.
TEST(ExpertMlp, MatchesDoublePrecisionWithFormatsOfTheirOwn) {
  const std::pair<WeightFormat, WeightFormat> pairs[] = {{kGguf4, kGguf4},
                                                         {kGguf8, kGguf8},
                                                         {kGguf4, kGguf8},
                                                         {kGguf8, WeightFormat::kBFloat16},
                                                         {WeightFormat::kBFloat16, kGguf4}};
  for (const CpuIsa isa : runnable_isas()) {
    for (const auto& [format, down_format] : pairs) {
      for (const int64_t m : {1, 19, 300}) {
        expect_exact(coded_problem(format, {4, 2, 256, 256}, m, down_format), isa,
                     fmt::format("{} and {}, {} rows", weight_format_name(format),
                                 weight_format_name(down_format), m));
      }
    }
  }
}

TEST(ExpertMlp, MatchesDoublePrecision) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const Sizes& sizes : all_sizes()) {
      for (const int64_t m : {1, 2, 7, 33}) {
        expect_exact(random_problem(sizes, m, static_cast<uint32_t>(m)), isa,
                     fmt::format("{} experts, {} rows", sizes.num_experts, m));
      }
    }
  }
  expect_exact(random_problem(all_sizes()[0], 4096, 3), best_kernels(), "4096 rows");
}

// Experts 1 to 7 have no rows, or all but one.
TEST(ExpertMlp, ExpertsMayHaveNoRowsOrAll) {
  for (const int64_t m : {1, 40, 200}) {
    Problem problem = random_problem({8, 1, 64, 48}, m, 11);
    problem.input.experts.assign(static_cast<size_t>(m), 0);
    expect_exact(problem, best_kernels(), "all to the first");
    problem.input.experts.assign(static_cast<size_t>(m), 7);
    expect_exact(problem, best_kernels(), "all to the last");
    problem.input.experts.front() = 3;
    expect_exact(problem, best_kernels(), "one elsewhere");
  }
}

// An MLP that every row takes, by a gate of the row.
TEST(ExpertMlp, WhatRowsShareIsAddedByTheirGate) {
  for (const CpuIsa isa : runnable_isas()) {
    Problem problem = random_problem(all_sizes()[1], 33, 31);
    problem.input.shared = random_bf16(33 * problem.input.hidden, 32);
    problem.input.shared_gate = random_logits(33, 33);
    expect_exact(problem, isa, "shared");
    const std::vector<uint16_t> all = bits_of(run(problem, isa, 0, 33));
    if (!testing_cpu()) continue;  // many rows have another kernel there
    EXPECT_EQ(bits_of(run(problem, isa, 32, 33)),
              std::vector(all.end() - problem.input.hidden, all.end()));
  }
}

TEST(ExpertMlp, ARowDoesNotDependOnItsNeighboursOrOnThreads) {
  for (const CpuIsa isa : runnable_isas()) {
    for (const Sizes& sizes : all_sizes()) {
      const int64_t m = testing_cpu() ? 70 : 16;  // a GPU promises it up to there
      const Problem problem = random_problem(sizes, m, 17);
      const std::vector<uint16_t> all = bits_of(run(problem, isa, 0, m));
      EXPECT_EQ(bits_of(run(problem, isa, 0, m, 1)), all);
      EXPECT_EQ(bits_of(run(problem, isa, 0, m, 3)), all);
      for (const auto& [begin, end] :
           {std::pair<int64_t, int64_t>{0, 1}, {m - 1, m}, {m / 5, m / 2 + 1}}) {
        const auto first = all.begin() + begin * sizes.hidden;
        EXPECT_EQ(bits_of(run(problem, isa, begin, end)),
                  std::vector(first, first + (end - begin) * sizes.hidden))
            << kernels_name(isa) << " rows " << begin << " to " << end;
      }
    }
  }
}

// Whether they are spread or chose its experts, too; with few and with many pairs for an expert.
TEST(ExpertMlp, ARowDoesNotDependOnWhatOthersChoose) {
  for (const WeightFormat format : {WeightFormat::kBFloat16, WeightFormat::kE4m3Blocks}) {
    for (const int64_t m : {40, 300}) {
      Problem problem = coded_problem(format, {8, 2, 256, 128}, m);
      const auto first_row = [&] {
        std::vector<uint16_t> all = bits_of(run(problem, best_kernels(), 0, m));
        all.resize(static_cast<size_t>(problem.sizes.hidden));
        return all;
      };
      const auto spread = first_row();
      for (size_t i = 2; i < problem.input.experts.size(); ++i) {
        problem.input.experts[i] = problem.input.experts[i % 2];
      }
      EXPECT_EQ(first_row(), spread) << weight_format_name(format) << ", " << m << " rows";
    }
  }
}

// With one expert and a share of 1 the layer is a dense MLP whose last product is f32.
TEST(ExpertMlp, OneExpertIsADenseMlp) {
  Problem problem = random_problem({1, 1, 64, 48}, 20, 23);
  problem.input.shares.assign(20, 1.0f);
  expect_exact(problem, best_kernels(), "one expert");
}

TEST(ExpertMlpDeathTest, AnExpertThatIsNotThereIsAFailedCheck) {
  if (!testing_cpu()) GTEST_SKIP() << "a GPU does not check";
  Problem problem = random_problem({4, 1, 16, 16}, 3, 29);
  problem.input.experts[1] = 4;
  EXPECT_DEATH(run(problem, CpuIsa::kScalar, 0, 3), "experts\\[1\\] is 4 of 4");
}

}  // namespace
}  // namespace sluice::testing
