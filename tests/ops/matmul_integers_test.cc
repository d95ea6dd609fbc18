// Products with weights in integers of 4 and 8 bits, with the kernels of every ISA that this
// machine has.
//
// Double precision over the numbers that codes, zero points and scales stand for reveals a wrong
// conversion, a scale at the wrong row or column, a wrong order of columns and wrong edges; bits of
// a row for other neighbours and threads, breaches of invariant 7; matrices side by side, scales
// and orders that get lost.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "op_test_util.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/rows/activation.h"
#include "packed_weights.h"

namespace sluice::testing {
namespace {

constexpr int64_t kSkinnyRows = 16;  // up to here a GPU does not round weights to bf16

// A matrix as it is packed: a scale and a zero point for each row and group of columns.
struct IntegerMatrix {
  WeightFormat format;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
  std::vector<int32_t> order;  // the column of x of each column; empty: the same

  int64_t per_row() const { return scales_per_row(format, k); }
  double value(int64_t row, int64_t column) const {
    const int64_t group = format.group_cols == 0 ? 0 : column / format.group_cols;
    const auto at = static_cast<size_t>(row * per_row() + group);
    const int difference = codes[static_cast<size_t>(row * k + column)] - zeros[at];
    return difference * static_cast<double>(scales[at]);
  }
  // What code and zero point stand for, added up.
  double size(int64_t row, int64_t column) const {
    const int64_t group = format.group_cols == 0 ? 0 : column / format.group_cols;
    const auto at = static_cast<size_t>(row * per_row() + group);
    const int sum = codes[static_cast<size_t>(row * k + column)] + zeros[at];
    return sum * static_cast<double>(scales[at]);
  }
  int64_t column_of_x(int64_t column) const {
    return order.empty() ? column : order[static_cast<size_t>(column)];
  }
};

// All codes and zero points; scales of both signs that are no powers of two and differ by 2^60. A
// group in eight is of zeros.
IntegerMatrix random_matrix(WeightFormat format, int64_t n, int64_t k, uint32_t seed = 0) {
  IntegerMatrix matrix{.format = format, .n = n, .k = k};
  uint32_t state = static_cast<uint32_t>(n * 7919 + k) + seed;
  const auto draw = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
  const uint32_t mask = format.numbers == WeightNumbers::kUint4 ? 15 : 255;
  for (int64_t i = 0; i < n * k; ++i) matrix.codes.push_back(static_cast<uint8_t>(draw() & mask));
  for (int64_t i = 0; i < n * matrix.per_row(); ++i) {
    const float scale = std::ldexp(1.0f + static_cast<float>(draw() & 1023) / 1024,
                                   static_cast<int>(draw() % 60) - 30);
    matrix.scales.push_back(draw() % 4 == 0 ? -scale : scale);
    matrix.zeros.push_back(static_cast<uint8_t>(draw() & mask));
  }
  const int64_t group_cols = format.group_cols == 0 ? k : format.group_cols;
  for (int64_t i = 0; i < n * k; ++i) {
    const int64_t scale = i / k * matrix.per_row() + i % k / group_cols;
    if (scale % 8 == 5) {
      matrix.codes[static_cast<size_t>(i)] = matrix.zeros[static_cast<size_t>(scale)];
    }
  }
  if (format.num_orders > 0) {
    matrix.order.resize(static_cast<size_t>(k));
    std::iota(matrix.order.begin(), matrix.order.end(), 0);
    for (size_t i = matrix.order.size(); i > 1; --i) {
      std::swap(matrix.order[i - 1], matrix.order[draw() % i]);
    }
  }
  return matrix;
}

void pack_at(Machine& machine, IntegerMatrix& matrix, const PackedWeight& weight, int64_t row_begin,
             int32_t order_index = 0) {
  TensorView order;
  if (!matrix.order.empty()) order = TensorView(matrix.order.data(), DType::kI32, {matrix.k});
  pack_weight(
      machine.stream(),
      {.src = TensorView(matrix.codes.data(), DType::kU8, {matrix.n, matrix.k}),
       .dst = weight,
       .row_begin = row_begin,
       .scales = TensorView(matrix.scales.data(), DType::kF32, {matrix.n, matrix.per_row()}),
       .zeros = TensorView(matrix.zeros.data(), DType::kU8, {matrix.n, matrix.per_row()}),
       .order = order,
       .order_index = order_index});
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

// The bound of matmul_test.cc, with one more rounding for each product with a scale; with many rows
// a GPU rounds each number to bf16. With few rows it subtracts the product of zero points of 4 bits
// and the sum of x from that of codes, so errors follow codes and not their differences.
void expect_near(const std::vector<float>& out, const std::vector<BFloat16>& x, int64_t m,
                 const IntegerMatrix& matrix, int64_t first = 0, int64_t width = 0) {
  if (width == 0) width = matrix.n;
  const double share = testing_cpu() || m <= kSkinnyRows ? 0 : 0x1p-8;
  const bool sums_codes =
      !testing_cpu() && m <= kSkinnyRows && matrix.format.numbers == WeightNumbers::kUint4;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < matrix.n; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t l = 0; l < matrix.k; ++l) {
        const auto at = static_cast<size_t>(i * matrix.k + matrix.column_of_x(l));
        const double product = static_cast<double>(static_cast<float>(x[at])) * matrix.value(j, l);
        sum += product;
        magnitude += std::abs(product);
        if (sums_codes) magnitude += std::abs(static_cast<float>(x[at]) * matrix.size(j, l));
      }
      const auto got = static_cast<double>(out[static_cast<size_t>(i * width + first + j)]);
      const double bound = (static_cast<double>(matrix.k + 3) * kUnitF32 + share) * magnitude;
      ASSERT_LE(std::abs(got - sum), bound) << i << ", " << j;
    }
  }
}

class MatmulIntegersTest : public ::testing::TestWithParam<CpuIsa> {};

INSTANTIATE_TEST_SUITE_P(EveryIsa, MatmulIntegersTest, ::testing::ValuesIn(runnable_isas()),
                         [](const auto& test) { return kernels_name(test.param); });

TEST_P(MatmulIntegersTest, EveryShapeIsNearTheReference) {
  Machine machine(2);
  for (const WeightNumbers numbers : {WeightNumbers::kUint4, WeightNumbers::kUint8}) {
    for (const int32_t group_cols : {0, 32, 96, 128, 160}) {
      for (int64_t n : {1, 17, 130}) {
        for (int64_t k : {1, 33, 128, 301, 384}) {
          for (int64_t m : {1, 3, 64}) {
            SCOPED_TRACE(::testing::Message()
                         << "m " << m << " n " << n << " k " << k << " group " << group_cols);
            const WeightFormat format = {
                .numbers = numbers, .group_cols = group_cols, .num_orders = m == 3 ? 1 : 0};
            IntegerMatrix matrix = random_matrix(format, n, k);
            const PackedWeight weight = make_weight(machine, format, n, k);
            pack_at(machine, matrix, weight, 0);
            const auto x = random_bf16(m * k, 3);
            expect_near(multiply(machine, x, m, weight, GetParam()), x, m, matrix);
          }
        }
      }
    }
  }
}

TEST_P(MatmulIntegersTest, RowsDoNotDependOnTheirNeighboursOnThreadsOrOnSharedMemory) {
  const int64_t n = 272;
  const int64_t k = 696;
  const std::vector<int64_t> counts = testing_cpu()
                                          ? std::vector<int64_t>{1, 2, 5, 16, 17, 64, 100}
                                          : std::vector<int64_t>{1, 2, 5, 8, 9, kSkinnyRows};
  const auto x = random_bf16(100 * k, 4);
  for (const WeightNumbers numbers : {WeightNumbers::kUint4, WeightNumbers::kUint8}) {
    for (const int32_t num_orders : {0, 1}) {
      const WeightFormat format = {.numbers = numbers, .group_cols = 64, .num_orders = num_orders};
      IntegerMatrix matrix = random_matrix(format, n, k);
      std::vector<float> whole;
      for (int num_threads : {1, 3}) {
        Machine machine(num_threads, num_threads == 3 ? kSmallGpuSharedBytes : 0);
        const PackedWeight weight = make_weight(machine, format, n, k);
        pack_at(machine, matrix, weight, 0);
        if (whole.empty()) whole = multiply(machine, x, counts.back(), weight, GetParam());
        for (const int64_t m : counts) {
          const auto part = multiply(machine, x, m, weight, GetParam());
          EXPECT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(float)), 0)
              << "m " << m << " threads " << num_threads << " orders " << num_orders;
        }
      }
    }
  }
}

// Matrices of these heights in one weight, each with numbers, and where the format has orders an
// order, of its own; and where each begins.
struct Stack {
  PackedWeight weight;
  std::vector<std::pair<int64_t, IntegerMatrix>> parts;
};

Stack pack_stack(Machine& machine, WeightFormat format, const std::vector<int64_t>& heights,
                 int64_t k) {
  const bool has_orders = format.num_orders > 0;
  if (has_orders) format.num_orders = static_cast<int32_t>(heights.size());
  const int64_t n = std::accumulate(heights.begin(), heights.end(), int64_t{0});
  Stack stack{.weight = make_weight(machine, format, n, k), .parts = {}};
  int64_t first = 0;
  for (const int64_t height : heights) {
    const auto index = static_cast<int32_t>(stack.parts.size());
    stack.parts.emplace_back(first, random_matrix(format, height, k, static_cast<uint32_t>(index)));
    pack_at(machine, stack.parts.back().second, stack.weight, first, has_orders ? index : 0);
    first += height;
  }
  return stack;
}

// As q, k and v: own scales at rows that begin in the middle of a panel; with orders at whole ones,
// of which a GPU multiplies two together. Every number of few rows, and many.
TEST_P(MatmulIntegersTest, MatricesSideBySideKeepTheirScalesAndOrders) {
  Machine machine(2);
  const int64_t k = 200;
  const auto x = random_bf16(100 * k, 5);
  for (const WeightNumbers numbers : {WeightNumbers::kUint4, WeightNumbers::kUint8}) {
    for (const int32_t group_cols : {0, 32, 128}) {
      for (const bool has_orders : {false, true}) {
        const auto heights =
            has_orders ? std::vector<int64_t>{144, 48, 40} : std::vector<int64_t>{150, 51, 31};
        const Stack stack = pack_stack(
            machine,
            {.numbers = numbers, .group_cols = group_cols, .num_orders = has_orders ? 1 : 0},
            heights, k);
        for (const int64_t m : {1, 2, 5, 7, 8, 9, 15, 16, 17, 100}) {
          SCOPED_TRACE(::testing::Message()
                       << "m " << m << " group " << group_cols << " orders " << has_orders
                       << " 4 bits " << (numbers == WeightNumbers::kUint4));
          const auto out = multiply(machine, x, m, stack.weight, GetParam());
          for (const auto& [begin, part] : stack.parts) {
            expect_near(out, x, m, part, begin, stack.weight.num_rows);
          }
        }
      }
    }
  }
}

// Rows longer than what a block of threads takes at once, and parts of more blocks than one.
TEST_P(MatmulIntegersTest, LongRowsKeepTheirOrders) {
  Machine machine(2);
  const int64_t k = 5128;
  const auto x = random_bf16(24 * k, 6);
  for (const WeightNumbers numbers : {WeightNumbers::kUint4, WeightNumbers::kUint8}) {
    const Stack stack = pack_stack(
        machine, {.numbers = numbers, .group_cols = 128, .num_orders = 1}, {16, 32, 16}, k);
    for (const int64_t m : {1, 11, 24}) {
      const auto out = multiply(machine, x, m, stack.weight, GetParam());
      for (const auto& [begin, part] : stack.parts) {
        expect_near(out, x, m, part, begin, stack.weight.num_rows);
      }
    }
  }
}

// Gate and up of 48 rows have an order each; of 20 rows, one together.
TEST(GatedIntegers, AreTheProductAndItsGate) {
  Machine machine(2, 0);
  const int64_t k = 136;
  for (const WeightNumbers numbers : {WeightNumbers::kUint4, WeightNumbers::kUint8}) {
    for (const auto& heights : {std::vector<int64_t>{48, 48}, std::vector<int64_t>{40}}) {
      for (const int32_t num_orders : {0, 1}) {
        const WeightFormat format = {
            .numbers = numbers, .group_cols = 64, .num_orders = num_orders};
        const Stack stack = pack_stack(machine, format, heights, k);
        const int64_t width = stack.weight.num_rows / 2;
        for (const int64_t m : {1, 9, 40}) {
          const auto tensor = [&](int64_t columns) {
            return machine.tensor(DType::kBF16, {m, columns});
          };
          const GatedProductArgs args = {
              .x = machine.tensor(random_bf16(m * k, 7, 0x1p-20f), {m, k}),
              .weight = stack.weight,
              .gate_up = tensor(2 * width),
              .out = tensor(width)};
          const TensorView gate_up = tensor(2 * width), out = tensor(width);
          gated_product(machine.stream(), args);
          matmul(machine.stream(),
                 {.x = args.x, .weight = stack.weight, .bias = {}, .out = gate_up});
          swiglu(machine.stream(), {.gate_up = gate_up, .out = out});
          machine.synchronize();
          EXPECT_EQ(std::memcmp(args.out.bytes(), out.bytes(), out.num_bytes()), 0)
              << "m " << m << " orders " << num_orders << " rows " << stack.weight.num_rows;
        }
      }
    }
  }
}

// With a single 1 in a row of x and a scale of 1 the product is the number less its zero point, in
// bf16 too.
TEST_P(MatmulIntegersTest, EveryCodeAndZeroPointIsExact) {
  Machine machine(1);
  for (const int num_codes : {16, 256}) {
    const WeightFormat format = {.numbers = num_codes == 16 ? WeightNumbers::kUint4
                                                            : WeightNumbers::kUint8};
    for (const int64_t k : {1, 8}) {
      IntegerMatrix matrix{.format = format, .n = int64_t{num_codes} * num_codes, .k = k};
      for (int i = 0; i < num_codes * num_codes; ++i) {
        matrix.codes.insert(matrix.codes.end(), static_cast<size_t>(k),
                            static_cast<uint8_t>(i % num_codes));
        matrix.zeros.push_back(static_cast<uint8_t>(i / num_codes));
        matrix.scales.push_back(1.0f);
      }
      const PackedWeight weight = make_weight(machine, format, matrix.n, k);
      pack_at(machine, matrix, weight, 0);
      for (const int64_t m : {1, 17}) {
        std::vector<BFloat16> x(static_cast<size_t>(m * k));
        x.back() = BFloat16(1.0f);
        const auto out = multiply(machine, x, m, weight, GetParam());
        for (int i = 0; i < num_codes * num_codes; ++i) {
          ASSERT_EQ(out[static_cast<size_t>((m - 1) * matrix.n + i)],
                    static_cast<float>(i % num_codes - i / num_codes))
              << "k " << k << " m " << m;
        }
      }
    }
  }
}

TEST(IntegerWeights, CostTheirBitsAndFiveBytesAGroup) {
  const WeightFormat four = {.numbers = WeightNumbers::kUint4, .group_cols = 128};
  EXPECT_EQ(weight_bytes(four, 256, 500), 256u * 250 + 256 * 4 * 5);
  EXPECT_EQ(weight_bytes({.numbers = WeightNumbers::kUint8}, 256, 500), 256u * 500 + 256 * 5);
  if (!testing_cpu()) GTEST_SKIP() << "skipped: the padding is the CPU's";
  Machine machine;
  EXPECT_EQ(packed_weight_bytes(machine.device(), 17, 130, four), 32u * 80 + 32 * 2 * 5);
  WeightFormat ordered = four;
  ordered.num_orders = 2;  // an order is 4 bytes a column, and each of the two panels names its own
  EXPECT_EQ(packed_weight_bytes(machine.device(), 17, 130, ordered),
            32u * 80 + 32 * 2 * 5 + 2 * 130 * 4 + 2 * 4);
}

}  // namespace
}  // namespace sluice::testing
