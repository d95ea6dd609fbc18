// Products with weights in GGUF's blocks, with the kernels of every ISA that this machine has.
//
// Double precision over the numbers that codes and values stand for reveals a wrong conversion, a
// value at the wrong row, group or block, a slice that loses sums, and wrong edges. Bits of a row
// for other neighbours, threads and ISAs (but AMX) reveal breaches of invariant 7; matrices side by
// side, values that get lost.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "op_test_util.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/rows/activation.h"
#include "packed_weights.h"
#include "support/sample_of.h"

namespace sluice::testing {
namespace {

// What the types of GGUF are kept as: Q4_K, Q4_0 and Q4_1, Q5_K, Q6_K, Q8_0, and Q4_K beside Q6_K;
// Q5_1, Q6_K beside Q8_0 and Q5_1; and what no type has, but a GPU has kernels for.
std::vector<WeightFormat> formats() {
  const auto four = WeightNumbers::kGguf4, eight = WeightNumbers::kGguf8;
  return {{.numbers = four, .group_cols = 32, .block_cols = 256, .has_minima = true},
          {.numbers = four, .group_cols = 32, .block_cols = 32, .has_minima = true},
          {.numbers = eight, .group_cols = 32, .block_cols = 256, .has_minima = true},
          {.numbers = eight, .group_cols = 16, .block_cols = 256},
          {.numbers = eight, .group_cols = 32, .block_cols = 32},
          {.numbers = eight, .group_cols = 16, .block_cols = 256, .has_minima = true},
          {.numbers = eight, .group_cols = 32, .block_cols = 32, .has_minima = true},
          {.numbers = eight, .group_cols = 16, .block_cols = 32},
          {.numbers = eight, .group_cols = 16, .block_cols = 32, .has_minima = true},
          {.numbers = eight, .group_cols = 32, .block_cols = 256}};
}

// A matrix as it is packed.
struct GgufMatrix {
  WeightFormat format;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<uint8_t> codes;
  std::vector<uint8_t> factors;
  std::vector<uint8_t> minima;
  std::vector<Float16> scales;
  std::vector<Float16> min_scales;

  int64_t num_groups() const { return k / format.group_cols; }
  int64_t num_blocks() const { return k / format.block_cols; }

  // Exact: of 24 bits and a difference.
  double value(int64_t row, int64_t column) const {
    const auto group = static_cast<size_t>(row * num_groups() + column / format.group_cols);
    const auto block = static_cast<size_t>(row * num_blocks() + column / format.block_cols);
    const uint8_t code = codes[static_cast<size_t>(row * k + column)];
    const int q = format.numbers == WeightNumbers::kGguf4 ? code : static_cast<int8_t>(code);
    const double step = static_cast<double>(static_cast<float>(scales[block])) *
                        static_cast<int8_t>(factors[group]);
    double offset = 0;
    if (format.has_minima) {
      offset = static_cast<double>(static_cast<float>(min_scales[block])) * minima[group];
    }
    return step * q - offset;
  }
  // What a product with the code adds up to at most before the minimum is subtracted.
  double magnitude(int64_t row, int64_t column) const {
    const auto group = static_cast<size_t>(row * num_groups() + column / format.group_cols);
    const auto block = static_cast<size_t>(row * num_blocks() + column / format.block_cols);
    const double offset =
        format.has_minima
            ? std::abs(static_cast<double>(static_cast<float>(min_scales[block]))) * minima[group]
            : 0;
    return std::abs(value(row, column)) + 2 * offset;
  }
};

// Codes and factors of the widths that types have. Scales of both signs, from subnormal ones to the
// largest; a block in eight is of zeros.
GgufMatrix random_matrix(WeightFormat format, int64_t n, int64_t k, uint32_t seed = 0) {
  GgufMatrix matrix{.format = format, .n = n, .k = k};
  uint32_t state = static_cast<uint32_t>(n * 7919 + k) + seed;
  const auto draw = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
  const bool is_8_0 = format.block_cols == 32;  // with a factor of 1
  for (int64_t i = 0; i < n * k; ++i) {
    const auto code = static_cast<int>(draw() & 255);
    const int q = format.numbers == WeightNumbers::kGguf4 ? code & 15
                  : is_8_0                                ? code - 128
                                                          : code % 64 - 32;
    matrix.codes.push_back(static_cast<uint8_t>(q));
  }
  for (int64_t i = 0; i < n * matrix.num_groups(); ++i) {
    matrix.factors.push_back(is_8_0 ? uint8_t{1} : static_cast<uint8_t>(draw()));
    matrix.minima.push_back(static_cast<uint8_t>(draw() & 63));
  }
  // Of any size, but finite.
  const auto half = [&] {
    const uint32_t bits = draw() & 0xffff;
    const bool is_finite = (bits & 0x7c00) != 0x7c00;
    return Float16{static_cast<uint16_t>(is_finite ? bits : bits & 0x83ff)};
  };
  for (int64_t i = 0; i < n * matrix.num_blocks(); ++i) {
    const bool is_zero = draw() % 8 == 5;
    matrix.scales.push_back(is_zero ? Float16{0} : half());
    matrix.min_scales.push_back(is_zero ? Float16{0} : half());
  }
  return matrix;
}

// As rows of `weight` from row_begin on.
void pack_at(Machine& machine, GgufMatrix& matrix, const PackedWeight& weight, int64_t row_begin) {
  const int64_t n = matrix.n, groups = matrix.num_groups(), blocks = matrix.num_blocks();
  GgufValues values{.factors = TensorView(matrix.factors.data(), DType::kU8, {n, groups}),
                    .minima = {},
                    .scales = TensorView(matrix.scales.data(), DType::kF16, {n, blocks}),
                    .min_scales = {}};
  if (matrix.format.has_minima) {
    values.minima = TensorView(matrix.minima.data(), DType::kU8, {n, groups});
    values.min_scales = TensorView(matrix.min_scales.data(), DType::kF16, {n, blocks});
  }
  pack_weight(machine.stream(), {.src = TensorView(matrix.codes.data(), DType::kU8, {n, matrix.k}),
                                 .dst = weight,
                                 .row_begin = row_begin,
                                 .values = values});
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

// Whether x is multiplied as bf16 and not as integers.
bool multiplies_bf16(CpuIsa isa) { return !testing_cpu() || isa == CpuIsa::kAmx; }

// What a product may lose, by the rounding of sums, or of a weight to bf16: on a GPU with many
// rows, which the library multiplies.
double share_of(int64_t m, const GgufMatrix& matrix, CpuIsa isa) {
  if (!multiplies_bf16(isa)) return 0x1p-20;
  const bool is_rounded = !testing_cpu() && m > 16 && matrix.n % 8 == 0;
  return is_rounded ? 0x1p-8 : static_cast<double>(matrix.k + 6) * kUnitF32;
}

// What each of 32 columns may lose, where the largest of them has this magnitude: with integers
// their rounding, with AMX subnormal numbers.
double lost_of(double largest, CpuIsa isa) {
  if (!testing_cpu()) return 0;
  return isa == CpuIsa::kAmx ? std::min(largest, 0x1p-126) : largest * (0x1p-16 + 0x1p-20);
}

// The product of some rows in double precision, and what it may lose.
class Expected {
 public:
  Expected(const std::vector<BFloat16>& x, int64_t m, const GgufMatrix& matrix, CpuIsa isa)
      : matrix_(matrix), isa_(isa) {
    std::vector<double> values, magnitudes;
    for (int64_t j = 0; j < matrix.n; ++j) {
      for (int64_t l = 0; l < matrix.k; ++l) {
        values.push_back(matrix.value(j, l));
        magnitudes.push_back(matrix.magnitude(j, l));
      }
    }
    for (int64_t i = 0; i < m; ++i) {
      std::vector<double> row;
      for (int64_t l = 0; l < matrix.k; ++l) {
        row.push_back(static_cast<float>(x[static_cast<size_t>(i * matrix.k + l)]));
      }
      const std::vector<double> lost = lost_of_row(row);
      for (int64_t j = 0; j < matrix.n; ++j) {
        elements_.push_back(
            element_of(row, lost, values.data() + j * matrix.k, magnitudes.data() + j * matrix.k));
      }
    }
  }

  // The first m rows, `width` apart, from column `first` on.
  void expect_near(const std::vector<float>& out, int64_t m, int64_t first, int64_t width) const {
    const double share = share_of(m, matrix_, isa_);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < matrix_.n; ++j) {
        const Element& element = elements_[static_cast<size_t>(i * matrix_.n + j)];
        const auto got = static_cast<double>(out[static_cast<size_t>(i * width + first + j)]);
        ASSERT_LE(std::abs(got - element.sum), element.lost + share * element.magnitude)
            << i << ", " << j;
      }
    }
  }
  void expect_near(const std::vector<float>& out, int64_t m) const {
    expect_near(out, m, 0, matrix_.n);
  }

 private:
  struct Element {
    double sum = 0;
    double magnitude = 0;  // of what is added
    double lost = 0;
  };

  std::vector<double> lost_of_row(const std::vector<double>& row) const {
    std::vector<double> lost;
    for (size_t begin = 0; begin < row.size(); begin += 32) {
      double largest = 0;
      for (size_t l = begin; l < begin + 32; ++l) largest = std::max(largest, std::abs(row[l]));
      lost.insert(lost.end(), 32, lost_of(largest, isa_));
    }
    return lost;
  }

  static Element element_of(const std::vector<double>& row, const std::vector<double>& lost,
                            const double* values, const double* magnitudes) {
    Element element;
    for (size_t l = 0; l < row.size(); ++l) {
      element.sum += row[l] * values[l];
      element.magnitude += std::abs(row[l]) * magnitudes[l];
      element.lost += magnitudes[l] * lost[l];
    }
    return element;
  }

  const GgufMatrix& matrix_;
  CpuIsa isa_;
  std::vector<Element> elements_;
};

class MatmulGgufTest : public ::testing::TestWithParam<CpuIsa> {};

INSTANTIATE_TEST_SUITE_P(EveryIsa, MatmulGgufTest, ::testing::ValuesIn(runnable_isas()),
                         [](const auto& test) { return kernels_name(test.param); });

// One row, tiles of any height, and panels that end within rows.
TEST_P(MatmulGgufTest, EveryShapeIsNearTheReference) {
  Machine machine(2);
  for (const WeightFormat format : formats()) {
    if (!keeps_gguf(machine.device(), format)) continue;
    for (const int64_t n : {1, 17, 144}) {
      for (const int64_t k : {32, 256, 288, 512, 1280}) {
        if (k % format.block_cols != 0) continue;
        GgufMatrix matrix = random_matrix(format, n, k);
        const PackedWeight weight = make_weight(machine, format, n, k);
        pack_at(machine, matrix, weight, 0);
        const bool has_many = n == (testing_cpu() ? 17 : 144);
        const int64_t most = has_many ? 130 : 17;
        const auto x = random_bf16(most * k, 3);
        const Expected expected(x, most, matrix, GetParam());
        for (const int64_t m : {1, 2, 3, 4, 5, 8, 9, 16, 17, 130}) {
          if (m > most) continue;
          SCOPED_TRACE(::testing::Message()
                       << weight_format_name(format) << ", groups of " << format.group_cols
                       << ": m " << m << " n " << n << " k " << k);
          expected.expect_near(multiply(machine, x, m, weight, GetParam()), m);
        }
      }
    }
  }
}

// Across ISAs too, but with AMX, which multiplies bf16; and on GPUs with less shared memory.
TEST_P(MatmulGgufTest, RowsDoNotDependOnTheirNeighboursOnThreadsOrOnTheIsa) {
  const int64_t n = 144, k = 1280;
  const bool is_amx = GetParam() == CpuIsa::kAmx;
  const int64_t several_jobs = is_amx ? 600 : 200;
  const std::vector<int64_t> counts =
      testing_cpu() ? std::vector<int64_t>{1, 2, 3, 4, 5, 8, 9, 16, 17, several_jobs}
                    : std::vector<int64_t>{1, 2, 5, 8, 9, 16};
  const auto x = random_bf16(counts.back() * k, 4);
  const CpuIsa first = is_amx ? CpuIsa::kAmx : CpuIsa::kScalar;
  for (const WeightFormat format : sample_of(formats(), 3)) {
    GgufMatrix matrix = random_matrix(format, n, k);
    std::vector<float> whole;
    for (const int num_threads : {1, 3}) {
      Machine machine(num_threads, num_threads == 3 ? kSmallGpuSharedBytes : 0);
      if (!keeps_gguf(machine.device(), format)) continue;
      const PackedWeight weight = make_weight(machine, format, n, k);
      pack_at(machine, matrix, weight, 0);
      if (whole.empty()) whole = multiply(machine, x, counts.back(), weight, first);
      for (const int64_t m : counts) {
        const auto part = multiply(machine, x, m, weight, GetParam());
        EXPECT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0)
            << weight_format_name(format) << ": m " << m << " threads " << num_threads;
      }
    }
  }
}

// More columns than kernels keep of x at once, whatever their slices are.
TEST_P(MatmulGgufTest, LongRowsHaveTheSameBitsWithFewRowsAndMany) {
  if (!testing_cpu()) GTEST_SKIP() << "skipped: a GPU keeps no slices of x";
  const bool is_amx = GetParam() == CpuIsa::kAmx;
  const int64_t n = 17, k = 16384 + 768, most = 20;
  const auto x = random_bf16(most * k, 8);
  Machine machine(2);
  for (const WeightFormat format : sample_of(formats(), 3)) {
    GgufMatrix matrix = random_matrix(format, n, k);
    const PackedWeight weight = make_weight(machine, format, n, k);
    pack_at(machine, matrix, weight, 0);
    const auto whole = multiply(machine, x, most, weight, is_amx ? CpuIsa::kAmx : CpuIsa::kScalar);
    for (const int64_t m : {1, 4, 5}) {
      const auto part = multiply(machine, x, m, weight, GetParam());
      EXPECT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0)
          << weight_format_name(format) << ": m " << m;
    }
  }
}

// A number that is none makes its row none, and no other; numbers far apart and tiny ones stay.
TEST_P(MatmulGgufTest, NumbersOfAllSizes) {
  if (!testing_cpu()) GTEST_SKIP() << "skipped: a GPU multiplies bf16";
  Machine machine(1);
  const int64_t n = 17, k = 256, many = 20;
  for (const WeightFormat format : formats()) {
    GgufMatrix matrix = random_matrix(format, n, k);
    const PackedWeight weight = make_weight(machine, format, n, k);
    pack_at(machine, matrix, weight, 0);
    auto x = random_bf16(many * k, 6);
    for (int64_t i = 0; i < k; ++i) {
      const auto value = static_cast<float>(x[static_cast<size_t>(i)]);
      x[static_cast<size_t>(i)] = BFloat16(std::ldexp(value, static_cast<int>(i % 60) - 30));
      x[static_cast<size_t>(k + i)] = BFloat16(std::ldexp(value, i < 64 ? -126 : -60));
      x[static_cast<size_t>(3 * k + i)] = BFloat16(std::ldexp(value, -128));
    }
    const Expected expected(x, 2, matrix, GetParam());
    const auto four = multiply(machine, x, 4, weight, GetParam());
    expected.expect_near(four, 2);
    // The last row has subnormal numbers alone: with few rows and with many they count as much.
    const auto among_many = multiply(machine, x, many, weight, GetParam());
    EXPECT_EQ(std::memcmp(four.data(), among_many.data(), four.size() * sizeof(float)), 0);
    x[static_cast<size_t>(2 * k + 40)] = BFloat16(std::numeric_limits<float>::infinity());
    const auto out = multiply(machine, x, 3, weight, GetParam());
    for (int64_t j = 0; j < n; ++j) {
      EXPECT_FALSE(std::isnan(out[static_cast<size_t>(n + j)]));
      EXPECT_FALSE(std::isfinite(out[static_cast<size_t>(2 * n + j)])) << j;
    }
  }
}

// As q, k and v: own values at rows that begin in the middle of a panel.
TEST_P(MatmulGgufTest, MatricesSideBySideKeepTheirValues) {
  Machine machine(2);
  const int64_t k = 512, n = 150 + 51 + 29;
  const auto x = random_bf16(5 * k, 5);
  for (const WeightFormat format : formats()) {
    if (!keeps_gguf(machine.device(), format)) continue;
    const PackedWeight weight = make_weight(machine, format, n, k);
    std::vector<std::pair<int64_t, GgufMatrix>> parts;
    int64_t first = 0;
    for (const int64_t height : {150, 51, 29}) {
      parts.emplace_back(first, random_matrix(format, height, k, static_cast<uint32_t>(first)));
      pack_at(machine, parts.back().second, weight, first);
      first += height;
    }
    const auto out = multiply(machine, x, 5, weight, GetParam());
    for (const auto& [begin, part] : parts) {
      Expected(x, 5, part, GetParam()).expect_near(out, 5, begin, n);
    }
  }
}

// With a single 1 in a row of x the product is a number, which many rows have as bf16.
TEST(GgufConversion, RoundsNumbersOnce) {
  if (testing_cpu()) GTEST_SKIP() << "skipped: a GPU converts weights for many rows";
  Machine machine;
  const int64_t m = 64, n = 144, k = 1280;
  std::vector<BFloat16> x(static_cast<size_t>(m * k), BFloat16(0.0f));
  const auto column_of = [](int64_t row) { return row * 37 % k; };
  for (int64_t i = 0; i < m; ++i) x[static_cast<size_t>(i * k + column_of(i))] = BFloat16(1.0f);
  for (const WeightFormat format : formats()) {
    if (!keeps_gguf(machine.device(), format)) continue;
    GgufMatrix matrix = random_matrix(format, n, k);
    const PackedWeight weight = make_weight(machine, format, n, k);
    pack_at(machine, matrix, weight, 0);
    const auto out = multiply(machine, x, m, weight, CpuIsa::kScalar);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const BFloat16 number(static_cast<float>(matrix.value(j, column_of(i))));
        ASSERT_EQ(out[static_cast<size_t>(i * n + j)], static_cast<float>(number)) << i << ' ' << j;
      }
    }
  }
}

// Scales are those of a real file, since the product of a gate and `up` squares the largest. Sums
// have one order in both kernels.
TEST(GgufGatedProduct, IsTheProductAndThenTheGate) {
  const int64_t k = 512;
  Machine machine;
  for (const WeightFormat format : formats()) {
    if (!keeps_gguf(machine.device(), format)) continue;
    for (const int64_t width : {24, 82, 520}) {
      GgufMatrix matrix = random_matrix(format, 2 * width, k);
      for (Float16& scale : matrix.scales) scale.bits = 0x0c00 | (scale.bits & 0x83ff);
      for (Float16& scale : matrix.min_scales) scale.bits = 0x0c00 | (scale.bits & 0x83ff);
      const PackedWeight weight = make_weight(machine, format, 2 * width, k);
      pack_at(machine, matrix, weight, 0);
      for (const int64_t m : {1, 2, 8, 9, 16, 17}) {
        SCOPED_TRACE(::testing::Message() << "m " << m << " width " << width << " groups of "
                                          << format.group_cols << ", " << format.block_cols);
        const GatedProductArgs args{.x = machine.tensor(random_bf16(m * k, 5, 0.1f), {m, k}),
                                    .weight = weight,
                                    .gate_up = machine.tensor(DType::kBF16, {m, 2 * width}),
                                    .out = machine.tensor(DType::kBF16, {m, width})};
        const TensorView gate_up = machine.tensor(DType::kBF16, {m, 2 * width});
        const TensorView out = machine.tensor(DType::kBF16, {m, width});
        gated_product(machine.stream(), args);
        matmul(machine.stream(), {.x = args.x, .weight = weight, .bias = {}, .out = gate_up});
        swiglu(machine.stream(), {.gate_up = gate_up, .out = out});
        machine.synchronize();
        EXPECT_EQ(std::memcmp(args.out.bytes(), out.bytes(), out.num_bytes()), 0);
      }
    }
  }
}

TEST(GgufWeights, CostTheirBitsAndThoseOfTheirValues) {
  const WeightFormat q4_k = formats()[0], q6_k = formats()[3], q8_0 = formats()[4];
  // In bits a number: 4.625, 8.5625 and 8.75.
  EXPECT_EQ(weight_bytes(q4_k, 256, 512), 256u * (256 + 2 * (16 + 2 * 2)));
  EXPECT_EQ(weight_bytes(q6_k, 256, 512), 256u * (512 + 32 + 2 * 2));
  EXPECT_EQ(weight_bytes(q8_0, 256, 512), 256u * (512 + 16 + 2 * 16));
  if (!testing_cpu()) GTEST_SKIP() << "skipped: the padding is the CPU's";
  Machine machine;
  EXPECT_EQ(packed_weight_bytes(machine.device(), 17, 512, q4_k), weight_bytes(q4_k, 32, 512));
}

}  // namespace
}  // namespace sluice::testing
