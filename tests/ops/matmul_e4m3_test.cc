// Products with weights in e4m3, with the kernels of every ISA that this machine has.
//
// Double precision over the numbers that codes and scales stand for, and that a GPU rounds x to,
// reveals a wrong conversion, a scale at the wrong row or column and wrong edges; bits of a row for
// other neighbours and threads, breaches of invariant 7; matrices side by side, scales that get
// lost.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "op_test_util.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/reference/matmul.h"
#include "packed_weights.h"
#include "support/sample_of.h"

namespace sluice::testing {
namespace {

// A matrix as a checkpoint has it: a scale for `scale_rows` rows and, but in kE4m3Rows, 128
// columns.
struct E4m3Matrix {
  WeightFormat format = WeightFormat::kE4m3Groups;
  int64_t n = 0;
  int64_t k = 0;
  int64_t scale_rows = 1;
  std::vector<uint8_t> codes;
  std::vector<float> scales;

  int64_t per_row() const { return scales_per_row(format, k); }

  // By the definition of e4m3, times the scale.
  double value(int64_t row, int64_t column) const {
    const int64_t group = per_row() == 1 ? 0 : column / kScaleGroup;
    const float scale = scales[static_cast<size_t>(row / scale_rows * per_row() + group)];
    return e4m3_number(codes[static_cast<size_t>(row * k + column)]) * static_cast<double>(scale);
  }
};

// All codes but NaN's; scales that are no powers of two and differ by large factors.
E4m3Matrix random_matrix(WeightFormat format, int64_t n, int64_t k, int64_t scale_rows) {
  E4m3Matrix matrix{.format = format, .n = n, .k = k, .scale_rows = scale_rows};
  uint32_t state = static_cast<uint32_t>(n * 7919 + k);
  const auto draw = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
  for (int64_t i = 0; i < n * k; ++i) {
    const auto code = static_cast<uint8_t>(draw());
    matrix.codes.push_back((code & 0x7f) == 0x7f ? uint8_t{0} : code);
  }
  const int64_t num_scales = (n + scale_rows - 1) / scale_rows * matrix.per_row();
  for (int64_t i = 0; i < num_scales; ++i) {
    matrix.scales.push_back(std::ldexp(1.0f + static_cast<float>(draw() & 1023) / 1024,
                                       -static_cast<int>(draw() % 12)));
  }
  return matrix;
}

PackedWeight make_e4m3(Machine& machine, WeightFormat format, int64_t n, int64_t k) {
  return {.data = machine.allocate(packed_weight_bytes(machine.device(), n, k, format)),
          .num_rows = n,
          .num_cols = k,
          .format = format};
}

void pack_at(Machine& machine, E4m3Matrix& matrix, const PackedWeight& weight, int64_t row_begin) {
  pack_weight(
      machine.stream(),
      {.src = TensorView(matrix.codes.data(), DType::kU8, {matrix.n, matrix.k}),
       .dst = weight,
       .row_begin = row_begin,
       .scales = TensorView(matrix.scales.data(), DType::kF32,
                            {std::ssize(matrix.scales) / matrix.per_row(), matrix.per_row()}),
       .scale_rows = matrix.scale_rows});
  machine.synchronize();
}

std::vector<float> multiply(Machine& machine, std::vector<BFloat16> x, int64_t m,
                            const PackedWeight& weight, CpuIsa isa) {
  const TensorView out = machine.tensor(DType::kF32, {m, weight.num_rows});
  x.resize(static_cast<size_t>(m * weight.num_cols));
  const MatmulArgs args = {
      .x = machine.upload(x, {m, weight.num_cols}), .weight = weight, .bias = {}, .out = out};
  testing_cpu() ? cpu::CpuOps(isa).matmul(machine.stream(), args) : matmul(machine.stream(), args);
  return machine.download<float>(out);
}

constexpr int64_t kSkinnyRows = 16;  // up to here a GPU rounds neither x nor weights

// What is multiplied: x and weight as they are, or as a GPU rounds them for more rows.
struct Factors {
  std::vector<double> x;
  std::vector<double> weight;
  double share = 0;  // error of a sum beyond f32's, as a share of its magnitude
};

Factors exact_factors(const std::vector<BFloat16>& x, const E4m3Matrix& matrix) {
  Factors factors;
  for (const BFloat16 number : x) {
    factors.x.push_back(static_cast<double>(static_cast<float>(number)));
  }
  for (int64_t i = 0; i < matrix.n * matrix.k; ++i) {
    factors.weight.push_back(matrix.value(i / matrix.k, i % matrix.k));
  }
  return factors;
}

// The roundings that a GPU may choose. x becomes e4m3; the tensor cores of Hopper then align the 32
// products of an instruction to the largest of them, and cut below 13 bits: of 128 columns at most
// 4 x 33 cuts of 2^-13 of a number that is a fifth of the magnitude with random codes. Or weights
// become bf16: where the library has no product of e4m3 (shapes, older GPUs).
std::vector<Factors> factors_of(const std::vector<BFloat16>& x, int64_t m,
                                const E4m3Matrix& matrix) {
  Factors exact = exact_factors(x, matrix);
  if (testing_cpu() || m <= kSkinnyRows) return {std::move(exact)};
  std::vector<Factors> all = {exact};
  all.front().share = 0x1p-8;
  for (double& number : all.front().weight) {
    number = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(number))));
  }
  if (matrix.k % kScaleGroup != 0 || matrix.n % 16 != 0) return all;
  const int64_t group = matrix.format == WeightFormat::kE4m3Rows ? 0 : kScaleGroup;
  exact.x = reference::rounded_to_e4m3(x, matrix.k, group);
  exact.share = 0x1p-8;
  all.push_back(std::move(exact));
  return all;
}

// Whether rows `out` of `width` columns, of which the matrix has those from `first` on, are the
// product: each sum by the bound of matmul_test.cc with one more rounding for each product with a
// scale, and the share; beyond f32 also all of them together, by a distance that is a thirtieth of
// that of products with an x that is not rounded.
bool is_near(const std::vector<float>& out, const Factors& factors, int64_t m,
             const E4m3Matrix& matrix, int64_t first, int64_t width) {
  constexpr double kMostNmse = 1e-5;
  double error = 0, power = 0;
  bool is_in_bounds = true;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < matrix.n; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t l = 0; l < matrix.k; ++l) {
        const double product = factors.x[static_cast<size_t>(i * matrix.k + l)] *
                               factors.weight[static_cast<size_t>(j * matrix.k + l)];
        sum += product;
        magnitude += std::abs(product);
      }
      const auto got = static_cast<double>(out[static_cast<size_t>(i * width + first + j)]);
      const double share = static_cast<double>(matrix.k + 3) * kUnitF32 + factors.share;
      is_in_bounds = is_in_bounds && std::abs(got - sum) <= share * magnitude;
      error += (got - sum) * (got - sum);
      power += sum * sum;
    }
  }
  return is_in_bounds && (factors.share == 0 || error <= kMostNmse * power);
}

void expect_near(const std::vector<float>& out, const std::vector<BFloat16>& x, int64_t m,
                 const E4m3Matrix& matrix, int64_t first = 0, int64_t width = 0) {
  const std::vector<Factors> all = factors_of(x, m, matrix);
  EXPECT_TRUE(std::ranges::any_of(all, [&](const Factors& factors) {
    return is_near(out, factors, m, matrix, first, width == 0 ? matrix.n : width);
  }));
}

class MatmulE4m3Test : public ::testing::TestWithParam<CpuIsa> {};

INSTANTIATE_TEST_SUITE_P(EveryIsa, MatmulE4m3Test, ::testing::ValuesIn(runnable_isas()),
                         [](const auto& test) { return kernels_name(test.param); });

TEST_P(MatmulE4m3Test, EveryShapeIsNearTheReference) {
  Machine machine(2);
  size_t index = 0;
  for (const WeightFormat format :
       {WeightFormat::kE4m3Rows, WeightFormat::kE4m3Groups, WeightFormat::kE4m3Blocks}) {
    for (int64_t n : {1, 17, 130, 320}) {
      for (int64_t k : {1, 33, 128, 160, 301, 384, 1280}) {
        for (int64_t m : {1, 2, 17, 70}) {
          if (!in_sample(index++, 3)) continue;
          const bool is_blocks = format == WeightFormat::kE4m3Blocks || m == 1 || m == 70;
          const int64_t scale_rows = is_blocks ? kScaleGroup : m == 2 ? 1 : n;  // channel, tensor
          SCOPED_TRACE(::testing::Message() << "m " << m << " n " << n << " k " << k);
          E4m3Matrix matrix = random_matrix(format, n, k, scale_rows);
          const PackedWeight weight = make_e4m3(machine, format, n, k);
          pack_at(machine, matrix, weight, 0);
          const auto x = random_bf16(m * k, 3);
          expect_near(multiply(machine, x, m, weight, GetParam()), x, m, matrix);
        }
      }
    }
  }
}

TEST_P(MatmulE4m3Test, RowsDoNotDependOnTheirNeighboursOnThreadsOrOnSharedMemory) {
  const int64_t n = 272;
  const int64_t k = 700;
  E4m3Matrix matrix = random_matrix(WeightFormat::kE4m3Groups, n, k, kScaleGroup);
  const auto x = random_bf16(100 * k, 4);
  const std::vector<int64_t> counts = testing_cpu() ? std::vector<int64_t>{1, 2, 5, 16, 17, 64, 100}
                                                    : std::vector<int64_t>{1, 2, 5, kSkinnyRows};
  std::vector<float> whole;
  for (int num_threads : {1, 3}) {
    Machine machine(num_threads, num_threads == 3 ? kSmallGpuSharedBytes : 0);
    const PackedWeight weight = make_e4m3(machine, matrix.format, n, k);
    pack_at(machine, matrix, weight, 0);
    if (whole.empty()) whole = multiply(machine, x, counts.back(), weight, GetParam());
    for (const int64_t m : counts) {
      const auto part = multiply(machine, x, m, weight, GetParam());
      EXPECT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0)
          << "m " << m << " threads " << num_threads;
    }
  }
}

// As q, k and v: own scales by block, at rows that begin in the middle of a panel.
TEST_P(MatmulE4m3Test, MatricesSideBySideKeepTheirScales) {
  Machine machine(2);
  const int64_t k = 200;
  const PackedWeight weight = make_e4m3(machine, WeightFormat::kE4m3Groups, 230, k);
  const auto x = random_bf16(5 * k, 5);
  int64_t first = 0;
  std::vector<std::pair<int64_t, E4m3Matrix>> parts;
  for (const int64_t n : {150, 51, 29}) {
    parts.emplace_back(first, random_matrix(WeightFormat::kE4m3Groups, n, k, kScaleGroup));
    pack_at(machine, parts.back().second, weight, first);
    first += n;
  }
  const auto out = multiply(machine, x, 5, weight, GetParam());
  for (const auto& [begin, part] : parts) expect_near(out, x, 5, part, begin, 230);
}

// A scale of a block is that of rows which begin with one, whatever the backend stores.
TEST(E4m3WeightsDeathTest, BlocksBeginAtTheirRows) {
  Machine machine;
  const PackedWeight weight = make_e4m3(machine, WeightFormat::kE4m3Blocks, 256, 128);
  E4m3Matrix block = random_matrix(WeightFormat::kE4m3Blocks, 128, 128, kScaleGroup);
  EXPECT_DEATH(pack_at(machine, block, weight, 64), "blocks of scales begin at multiples");
  E4m3Matrix rows = random_matrix(WeightFormat::kE4m3Blocks, 128, 128, 1);
  EXPECT_DEATH(pack_at(machine, rows, weight, 0), "blocks of scales begin at multiples");
}

// The same where each begins with a block; more columns than the warps of a block of a GPU take.
TEST_P(MatmulE4m3Test, BlocksSideBySideKeepTheirScales) {
  Machine machine(2);
  const int64_t k = 2176;
  const PackedWeight weight = make_e4m3(machine, WeightFormat::kE4m3Blocks, 416, k);
  const auto x = random_bf16(21 * k, 5);
  int64_t first = 0;
  std::vector<std::pair<int64_t, E4m3Matrix>> parts;
  for (const int64_t n : {128, 256, 32}) {
    parts.emplace_back(first, random_matrix(WeightFormat::kE4m3Blocks, n, k, kScaleGroup));
    pack_at(machine, parts.back().second, weight, first);
    first += n;
  }
  for (const int64_t m : {5, 21}) {
    const auto out = multiply(machine, x, m, weight, GetParam());
    for (const auto& [begin, part] : parts) expect_near(out, x, m, part, begin, 416);
  }
}

// With a scale of 1 and a single 1 in x, the product is the number itself.
TEST_P(MatmulE4m3Test, EveryCodeIsExact) {
  Machine machine(1);
  E4m3Matrix matrix{.format = WeightFormat::kE4m3Rows, .n = 256, .k = 1, .scale_rows = 256};
  for (int code = 0; code < 256; ++code) matrix.codes.push_back(static_cast<uint8_t>(code));
  matrix.scales = {1.0f};
  const PackedWeight weight = make_e4m3(machine, matrix.format, 256, 1);
  pack_at(machine, matrix, weight, 0);
  const auto out = multiply(machine, {BFloat16(1.0f)}, 1, weight, GetParam());
  for (int64_t code = 0; code < 256; ++code) {
    const float got = out[static_cast<size_t>(code)];
    if ((code & 0x7f) == 0x7f) {  // of a weight that loading refuses
      EXPECT_TRUE(std::isnan(got) || !testing_cpu()) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(got), matrix.value(code, 0)) << code;
  }
}

// The reference itself: a row by hand, then numbers of all sizes against a search through all
// codes.
TEST(E4m3Activations, AreRoundedToTheNearestNumbers) {
  const std::vector<BFloat16> by_hand = {BFloat16(7.0f), BFloat16(-3.0f), BFloat16(0.1f),
                                         BFloat16(0.0f), BFloat16(0.0f)};
  // Scales 7 / 448 = 2^-6 and 1; 0.1 in bf16 is 6.40625 steps of 2^-6, between 6 and 6.5.
  EXPECT_EQ(reference::rounded_to_e4m3(by_hand, 5, 3),
            (std::vector<double>{7, -3, 6.5 / 64, 0, 0}));
  EXPECT_EQ(reference::rounded_to_e4m3({BFloat16(448.0f), BFloat16(17.0f), BFloat16(19.0f)}, 3, 0),
            (std::vector<double>{448, 16, 20}));  // ties go to even fractions
  const int64_t k = 384;
  std::vector<BFloat16> x = random_bf16(5 * k, 6);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = BFloat16(std::ldexp(static_cast<float>(x[i]), -static_cast<int>(i * 7 % 23)));
  }
  for (const int64_t group : {kScaleGroup, int64_t{0}}) {
    const int64_t width = group == 0 ? k : group;
    const std::vector<double> rounded = reference::rounded_to_e4m3(x, k, group);
    for (int64_t begin = 0; begin < 5 * k; begin += width) {
      float largest = 0;
      for (int64_t i = begin; i < begin + width; ++i) {
        largest = std::max(largest, std::abs(static_cast<float>(x[static_cast<size_t>(i)])));
      }
      const double scale = static_cast<double>(largest / 448.0f);
      for (int64_t i = begin; i < begin + width; ++i) {
        const auto number = static_cast<double>(static_cast<float>(x[static_cast<size_t>(i)]));
        double least = HUGE_VAL;  // the distance of the nearest code
        for (int code = 0; code < 256; ++code) {
          if ((code & 0x7f) == 0x7f) continue;
          const double stands_for = e4m3_number(static_cast<uint8_t>(code)) * scale;
          least = std::min(least, std::abs(stands_for - number));
        }
        // The quotient that is rounded is an f32.
        const double distance = std::abs(rounded[static_cast<size_t>(i)] - number);
        EXPECT_LE(distance, least + std::abs(number) * 0x1p-23) << i;
      }
    }
  }
}

// A product with an x that was rounded is not near one with x, by the bounds above: so they would
// show on a GPU which of both it computed, and a scale or a rounding of another rule.
TEST(E4m3Activations, ShowInTheProduct) {
  for (const WeightFormat format : {WeightFormat::kE4m3Rows, WeightFormat::kE4m3Groups}) {
    const int64_t n = 64, k = 1280, m = 40;
    const E4m3Matrix matrix = random_matrix(format, n, k, 1);
    const auto x = random_bf16(m * k, 3);
    Factors exact = exact_factors(x, matrix);
    Factors quantized = exact;
    quantized.x =
        reference::rounded_to_e4m3(x, k, format == WeightFormat::kE4m3Rows ? 0 : kScaleGroup);
    exact.share = quantized.share = 0x1p-8;
    std::vector<float> out;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += quantized.x[static_cast<size_t>(i * k + l)] * matrix.value(j, l);
        }
        out.push_back(static_cast<float>(sum));
      }
    }
    EXPECT_TRUE(is_near(out, quantized, m, matrix, 0, n));
    EXPECT_FALSE(is_near(out, exact, m, matrix, 0, n));
  }
}

TEST(E4m3Weights, CostOneByteANumberAndFourAScale) {
  EXPECT_EQ(weight_bytes(WeightFormat::kE4m3Rows, 256, 512), 256u * 512 + 256 * 4);
  EXPECT_EQ(weight_bytes(WeightFormat::kE4m3Groups, 256, 500), 256u * 500 + 256 * 4 * 4);
  if (!testing_cpu()) GTEST_SKIP() << "skipped: the padding is the CPU's";
  Machine machine;
  EXPECT_EQ(packed_weight_bytes(machine.device(), 17, 130, WeightFormat::kE4m3Groups),
            32u * 160 + 32 * 2 * 4);
}

}  // namespace
}  // namespace sluice::testing
