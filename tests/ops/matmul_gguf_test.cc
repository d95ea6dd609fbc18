// Products with weights in GGUF's blocks, with the kernels of every ISA that this machine has.
//
// The same numbers in bf16, made here in double precision, must give the same bits on the CPU:
// reveals a wrong conversion, a value at the wrong row, group or block, a slice that loses sums,
// and wrong edges. Matrices side by side keep their values. On a GPU up to 16 rows are multiplied
// by the numbers before they are rounded; their bits depend neither on each other nor on shared
// memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "op_test_util.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/rows/activation.h"
#include "packed_weights.h"

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

  // Puts the rows of another one below.
  void append(const GgufMatrix& other) {
    const auto add = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    n += other.n;
    add(codes, other.codes);
    add(factors, other.factors);
    add(minima, other.minima);
    add(scales, other.scales);
    add(min_scales, other.min_scales);
  }

  // A number before it is rounded to bf16, and the largest of what a GPU adds up to make it.
  struct Number {
    double value = 0;
    double magnitude = 0;
  };
  Number number(int64_t row, int64_t column) const {
    const auto group = static_cast<size_t>(row * num_groups() + column / format.group_cols);
    const auto block = static_cast<size_t>(row * num_blocks() + column / format.block_cols);
    const uint8_t code = codes[static_cast<size_t>(row * k + column)];
    const bool is_4 = format.numbers == WeightNumbers::kGguf4;
    const int q = is_4 ? code : static_cast<int8_t>(code);
    const double step = static_cast<double>(static_cast<float>(scales[block])) *
                        static_cast<int8_t>(factors[group]);
    double offset = 0;
    if (format.has_minima) {
      offset = static_cast<double>(static_cast<float>(min_scales[block])) * minima[group];
    }
    return {step * q - offset, std::abs(step) * (is_4 ? q : q + 256) + std::abs(offset)};
  }
  BFloat16 value(int64_t row, int64_t column) const {  // exact, then f32, then bf16
    return BFloat16(static_cast<float>(number(row, column).value));
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

PackedWeight make_weight(Machine& machine, WeightFormat format, int64_t n, int64_t k) {
  return {.data = machine.allocate(packed_weight_bytes(machine.device(), n, k, format)),
          .num_rows = n,
          .num_cols = k,
          .format = format};
}

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

// The numbers of `matrix` as bf16.
void pack_values_at(Machine& machine, const GgufMatrix& matrix, const PackedWeight& weight,
                    int64_t row_begin) {
  std::vector<BFloat16> values;
  for (int64_t row = 0; row < matrix.n; ++row) {
    for (int64_t column = 0; column < matrix.k; ++column) {
      values.push_back(matrix.value(row, column));
    }
  }
  pack_weight(machine.stream(),
              {.src = TensorView(values.data(), DType::kBF16, {matrix.n, matrix.k}),
               .dst = weight,
               .row_begin = row_begin});
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

void expect_same(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
}

// On a GPU: sums have another order, and numbers are rounded to bf16 only for the library, which
// takes more than 16 rows where n is a multiple of 8. The bound is that of matmul_test.cc, with
// four more roundings of products with scales. Some rows of many are enough.
void expect_near(const std::vector<float>& out, const std::vector<BFloat16>& x, int64_t m,
                 const GgufMatrix& matrix) {
  const int64_t n = matrix.n, k = matrix.k;
  const bool is_rounded = m > 16 && n % 8 == 0;
  std::vector<GgufMatrix::Number> numbers;
  for (int64_t i = 0; i < n * k; ++i) {
    numbers.push_back(matrix.number(i / k, i % k));
    if (is_rounded) {
      numbers.back().value = static_cast<double>(static_cast<float>(matrix.value(i / k, i % k)));
      numbers.back().magnitude = std::abs(numbers.back().value);
    }
  }
  for (int64_t i = 0; i < m; i += std::max<int64_t>(m / 16, 1)) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t l = 0; l < k; ++l) {
        const auto factor =
            static_cast<double>(static_cast<float>(x[static_cast<size_t>(i * k + l)]));
        const auto& number = numbers[static_cast<size_t>(j * k + l)];
        sum += factor * number.value;
        magnitude += std::abs(factor) * number.magnitude;
      }
      const auto got = static_cast<double>(out[static_cast<size_t>(i * n + j)]);
      ASSERT_LE(std::abs(got - sum), static_cast<double>(k + 6) * kUnitF32 * magnitude)
          << i << ", " << j;
    }
  }
}

// As the same numbers in bf16.
void expect_product(Machine& machine, const GgufMatrix& matrix, const PackedWeight& weight,
                    const std::vector<BFloat16>& x, int64_t m, CpuIsa isa) {
  const auto out = multiply(machine, x, m, weight, isa);
  if (!testing_cpu()) return expect_near(out, x, m, matrix);
  const PackedWeight plain = make_weight(machine, WeightFormat::kBFloat16, matrix.n, matrix.k);
  pack_values_at(machine, matrix, plain, 0);
  expect_same(out, multiply(machine, x, m, plain, isa));
}

class MatmulGgufTest : public ::testing::TestWithParam<CpuIsa> {};

INSTANTIATE_TEST_SUITE_P(EveryIsa, MatmulGgufTest, ::testing::ValuesIn(runnable_isas()),
                         [](const auto& test) { return kernels_name(test.param); });

TEST_P(MatmulGgufTest, HasTheBitsOfTheSameNumbersInBf16) {
  for (const int num_threads : {1, 3}) {
    if (!testing_cpu() && num_threads > 1) continue;
    Machine machine(num_threads);
    for (const WeightFormat format : formats()) {
      if (!keeps_gguf(machine.device(), format)) continue;
      for (const int64_t n : {1, 17, 144}) {
        for (const int64_t k : {32, 256, 288, 512, 1280}) {
          if (k % format.block_cols != 0) continue;
          GgufMatrix matrix = random_matrix(format, n, k);
          const PackedWeight weight = make_weight(machine, format, n, k);
          pack_at(machine, matrix, weight, 0);
          const auto x = random_bf16(600 * k, 3);
          for (const int64_t m : {1, 2, 3, 5, 8, 9, 16, 17, 64, 130, 600}) {
            if (m > 64 && n != 144) continue;
            SCOPED_TRACE(::testing::Message()
                         << weight_format_name(format) << ", groups of " << format.group_cols
                         << ": m " << m << " n " << n << " k " << k << " threads " << num_threads);
            expect_product(machine, matrix, weight, x, m, GetParam());
          }
        }
      }
    }
  }
}

// As q, k and v: own values at rows that begin in the middle of a panel.
TEST_P(MatmulGgufTest, MatricesSideBySideKeepTheirValues) {
  Machine machine(2);
  const int64_t k = 512;
  for (const WeightFormat format : formats()) {
    if (!keeps_gguf(machine.device(), format)) continue;
    const PackedWeight weight = make_weight(machine, format, 150 + 51 + 29, k);
    GgufMatrix all{.format = format, .k = k};
    for (const int64_t height : {150, 51, 29}) {
      GgufMatrix matrix = random_matrix(format, height, k, static_cast<uint32_t>(all.n));
      pack_at(machine, matrix, weight, all.n);
      all.append(matrix);
    }
    for (const int64_t m : {5, 33}) {
      expect_product(machine, all, weight, random_bf16(m * k, 5), m, GetParam());
    }
  }
}

// On a GPU of rows that have the kernel for few.
TEST_P(MatmulGgufTest, RowsDoNotDependOnTheirNeighboursOrOnSharedMemory) {
  const int64_t n = 272, k = 1280;
  const auto x = random_bf16(16 * k, 4);
  for (const WeightFormat format : formats()) {
    GgufMatrix matrix = random_matrix(format, n, k);
    std::vector<float> whole;
    for (const size_t most_shared_bytes : {size_t{0}, kSmallGpuSharedBytes}) {
      Machine machine(2, most_shared_bytes);
      if (!keeps_gguf(machine.device(), format)) continue;
      const PackedWeight weight = make_weight(machine, format, n, k);
      pack_at(machine, matrix, weight, 0);
      if (whole.empty()) whole = multiply(machine, x, 16, weight, GetParam());
      for (const int64_t m : {1, 2, 5, 8, 9, 16}) {
        const auto part = multiply(machine, x, m, weight, GetParam());
        EXPECT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0)
            << "m " << m << " groups of " << format.group_cols << " blocks of " << format.block_cols
            << " shared " << most_shared_bytes;
      }
    }
  }
}

// Scales are those of a real file, since the product of a gate and `up` squares the largest.
TEST(GgufGatedProduct, IsTheProductAndThenTheGate) {
  for (const WeightFormat format : formats()) {
    Machine machine;
    if (!keeps_gguf(machine.device(), format)) continue;
    for (const int64_t width : {24, 82, 520}) {
      const int64_t k = 512;
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
        // Sums have the same order in both kernels.
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
