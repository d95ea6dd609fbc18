// Matrix products on the device under test, on the CPU with the kernels of every ISA that this
// machine has.
//
// Comparison with double precision for every tail of every dimension reveals wrong edges of
// kernels; exact products of small integers, wrong layouts; bits of a row for other neighbours,
// positions and threads, breaches of invariant 7; NaN inputs, reads of padding; canaries, writes
// outside the output.
#include "ops/matmul/matmul.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "op_test_util.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/reference/matmul.h"
#include "packed_weights.h"

namespace sluice::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

reference::MatmulInput random_input(int64_t m, int64_t n, int64_t k, bool bias = false) {
  const auto seed = static_cast<uint32_t>(m * 1000003 + n * 1009 + k);
  return {.x = random_bf16(m * k, seed),
          .weight = random_bf16(n * k, seed + 1),
          .bias = bias ? random_bf16(n, seed + 2) : std::vector<BFloat16>{},
          .m = m,
          .n = n,
          .k = k};
}

// Uses the kernel of `isa` on the CPU. Other devices have one kernel and ignore `isa`.
void run_matmul(Machine& machine, const MatmulArgs& args, CpuIsa isa) {
  if (testing_cpu()) {
    cpu::CpuOps(isa).matmul(machine.stream(), args);
  } else {
    matmul(machine.stream(), args);
  }
}

// The output of one product with the kernel of `isa`, over rows [0, m) of the input.
template <typename Out>
std::vector<Out> product(Machine& machine, const reference::MatmulInput& input, int64_t m,
                         CpuIsa isa) {
  std::vector<BFloat16> rows(input.x.begin(), input.x.begin() + m * input.k);
  const TensorView out(machine.allocate(static_cast<size_t>(m * input.n) * sizeof(Out)),
                       kDTypeOf<Out>, {m, input.n});
  MatmulArgs args{.x = machine.upload(rows, {m, input.k}),
                  .weight = pack(machine, input.weight, input.n, input.k),
                  .bias = {},
                  .out = out};
  if (!input.bias.empty()) args.bias = machine.upload(input.bias, {input.n});
  run_matmul(machine, args, isa);
  return machine.download<Out>(out);
}

// Bounds that follow from the types. The f32 sum of k products and a bias, in any order, has an
// error of at most (k + 1) u sum|x w| (Higham 2002, section 3.1); rounding to the output type adds
// its own unit. NMSE: rounding errors of random sign grow like sqrt(k); the bound leaves a factor
// of 4.
template <typename Out>
void expect_near_reference(const std::vector<Out>& out, const reference::MatmulInput& input) {
  const reference::MatmulOutput truth = reference::matmul(input);
  const double unit = std::is_same_v<Out, float> ? 0.0 : kUnitBF16;
  const double gamma = static_cast<double>(input.k + 1) * kUnitF32;
  double error_energy = 0.0;
  double truth_energy = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double error = std::abs(static_cast<double>(static_cast<float>(out[i])) - truth.value[i]);
    const double summation = gamma * truth.magnitude[i];
    ASSERT_LE(error, summation + unit * (std::abs(truth.value[i]) + summation)) << "element " << i;
    error_energy += error * error;
    truth_energy += truth.value[i] * truth.value[i];
  }
  const double relative = unit + 4.0 * std::sqrt(static_cast<double>(input.k)) * kUnitF32;
  EXPECT_LE(error_energy, relative * relative * truth_energy);
}

class MatmulTest : public ::testing::TestWithParam<CpuIsa> {};

INSTANTIATE_TEST_SUITE_P(EveryIsa, MatmulTest, ::testing::ValuesIn(runnable_isas()),
                         [](const auto& test) { return kernels_name(test.param); });

TEST_P(MatmulTest, EveryNumberOfRowsIsNearTheReference) {
  Machine machine;
  for (int64_t m = 1; m <= 70; ++m) {
    SCOPED_TRACE(m);
    const auto input = random_input(m, 37, 67);
    expect_near_reference(product<float>(machine, input, m, GetParam()), input);
  }
}

TEST_P(MatmulTest, TailsOfEveryDimensionAreNearTheReference) {
  Machine machine;
  for (int64_t n : {1, 15, 16, 17, 33, 300}) {
    for (int64_t k : {1, 2, 31, 32, 33, 64, 511, 512, 1055}) {
      for (int64_t m : {1, 7, 33}) {
        SCOPED_TRACE(::testing::Message() << "m " << m << " n " << n << " k " << k);
        const auto input = random_input(m, n, k, /*bias=*/k % 2 == 0);
        expect_near_reference(product<BFloat16>(machine, input, m, GetParam()), input);
      }
    }
  }
}

TEST_P(MatmulTest, ManyRowsAndSeveralBlocksOfKAreNearTheReference) {
  Machine machine(3);
  for (int64_t m : {97, 300}) {
    const auto input = random_input(m, 290, 1100, /*bias=*/true);
    expect_near_reference(product<BFloat16>(machine, input, m, GetParam()), input);
  }
}

// Products of small integers are exact, so that an error of layout cannot pass as rounding.
TEST_P(MatmulTest, IntegersAreExact) {
  Machine machine;
  const int64_t m = 19;
  const int64_t n = 50;
  const int64_t k = 75;
  reference::MatmulInput input{.x = {}, .weight = {}, .bias = {}, .m = m, .n = n, .k = k};
  for (int64_t i = 0; i < m * k; ++i) input.x.emplace_back(static_cast<float>(i * 7 % 11 - 5));
  for (int64_t i = 0; i < n * k; ++i) input.weight.emplace_back(static_cast<float>(i * 5 % 13 - 6));
  for (int64_t i = 0; i < n; ++i) input.bias.emplace_back(static_cast<float>(i));
  const auto out = product<float>(machine, input, m, GetParam());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      int64_t sum = j;
      for (int64_t l = 0; l < k; ++l)
        sum += ((i * k + l) * 7 % 11 - 5) * ((j * k + l) * 5 % 13 - 6);
      ASSERT_EQ(out[static_cast<size_t>(i * n + j)], static_cast<float>(sum)) << i << ", " << j;
    }
  }
}

TEST_P(MatmulTest, RowsDoNotDependOnTheirNeighboursOrOnThreads) {
  if (!testing_cpu()) GTEST_SKIP() << "skipped: a GPU's products round by their height";
  const int64_t n = 272;
  const int64_t k = 1100;
  const auto input = random_input(100, n, k, /*bias=*/true);
  Machine first_machine(1);
  const auto whole = product<float>(first_machine, input, 100, GetParam());
  for (int num_threads : {1, 2, 3}) {
    Machine machine(num_threads);
    for (int64_t m : {1, 2, 3, 5, 16, 17, 64, 100}) {
      const auto part = product<float>(machine, input, m, GetParam());
      EXPECT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0)
          << "m " << m << " threads " << num_threads;
    }
  }
}

TEST_P(MatmulTest, ARowHasTheSameBitsAtEveryPosition) {
  Machine machine;
  auto input = random_input(40, 48, 96);
  for (int64_t row = 1; row < 40; ++row) {
    std::copy_n(input.x.begin(), 96, input.x.begin() + row * 96);
  }
  const auto out = product<float>(machine, input, 40, GetParam());
  for (int64_t row = 1; row < 40; ++row) {
    EXPECT_EQ(std::memcmp(out.data(), out.data() + row * 48, 48 * sizeof(float)), 0) << row;
  }
}

// NaN in a row of x reaches that row of out alone, and NaN in a weight row that column alone.
TEST_P(MatmulTest, NanAndInfinityStayInTheirRowAndColumn) {
  Machine machine;
  const int64_t m = 21;
  const int64_t n = 43;
  const int64_t k =
      45;  // not a multiple of the padding: values after the end of a row must not be used
  auto input = random_input(m, n, k);
  for (auto& weight : input.weight) weight = BFloat16(0.5f + std::abs(static_cast<float>(weight)));
  input.x[4 * k + 44] = BFloat16(kNan);
  input.x[9 * k] = BFloat16(kInf);
  input.x[20 * k + 7] = BFloat16(-kInf);
  for (int64_t l = 0; l < k; ++l) input.weight[17 * k + l] = BFloat16(kNan);
  const auto out = product<BFloat16>(machine, input, m, GetParam());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const auto value = static_cast<float>(out[static_cast<size_t>(i * n + j)]);
      SCOPED_TRACE(::testing::Message() << i << ", " << j << ": " << value);
      if (i == 4 || j == 17) {
        EXPECT_TRUE(std::isnan(value));
      } else if (i == 9 || i == 20) {
        EXPECT_EQ(value, i == 9 ? kInf : -kInf);
      } else {
        EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST_P(MatmulTest, NoRowsWriteNothing) {
  Machine machine;
  const auto input = random_input(1, 16, 32);
  std::vector<float> canary(16, 7.0f);
  const TensorView out = machine.upload(canary, {1, 16});
  run_matmul(machine,
             {.x = machine.upload(input.x, {1, 32}).rows(0, 0),
              .weight = pack(machine, input.weight, 16, 32),
              .bias = {},
              .out = out.rows(0, 0)},
             GetParam());
  EXPECT_EQ(machine.download<float>(out), canary);
}

TEST_P(MatmulTest, WritesOnlyItsOutput) {
  Machine machine;
  const auto input = random_input(5, 19, 40);
  std::vector<BFloat16> canary(7 * 19, BFloat16(3.0f));
  const TensorView out = machine.upload(canary, {7, 19});
  run_matmul(machine,
             {.x = machine.upload(input.x, {5, 40}),
              .weight = pack(machine, input.weight, 19, 40),
              .bias = {},
              .out = out.rows(1, 5)},
             GetParam());
  const auto after = machine.download<BFloat16>(out);
  for (int64_t i = 0; i < 19; ++i) {
    EXPECT_EQ(static_cast<float>(after[static_cast<size_t>(i)]), 3.0f);
    EXPECT_EQ(static_cast<float>(after[static_cast<size_t>(6 * 19 + i)]), 3.0f);
  }
}

// AVX2 and AVX-512 compute the same chain of fused multiply-adds, so the bits are equal.
TEST(MatmulIsaTest, Avx512HasTheBitsOfAvx2) {
  if (!testing_cpu()) GTEST_SKIP() << "skipped: about the CPU's kernels";
  if (detected_isa() < CpuIsa::kAvx512) GTEST_SKIP() << "this machine has no AVX-512";
  Machine machine;
  const auto input = random_input(30, 80, 700, /*bias=*/true);
  EXPECT_EQ(product<float>(machine, input, 30, CpuIsa::kAvx512),
            product<float>(machine, input, 30, CpuIsa::kAvx2));
}

// The public op, as the model calls it, uses the ISA that detection and environment select.
TEST(MatmulOpTest, UsesTheBestIsa) {
  Machine machine;
  const auto input = random_input(3, 48, 64, /*bias=*/true);
  const TensorView out(machine.allocate(3 * 48 * sizeof(float)), DType::kF32, {3, 48});
  matmul(machine.stream(), {.x = machine.upload(input.x, {3, 64}),
                            .weight = pack(machine, input.weight, 48, 64),
                            .bias = machine.upload(input.bias, {48}),
                            .out = out});
  EXPECT_EQ(machine.download<float>(out), product<float>(machine, input, 3, best_isa()));
}

}  // namespace
}  // namespace sluice::testing
