// Matrix products of the shapes that models have, through the public op on the device under test:
// numbers of rows around the borders between kernels, both output types, with and without bias.
// Also bits: rows that depend on padding, products that differ between runs, and weights packed in
// parts or through staging memory.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "op_test_util.h"
#include "ops/matmul/matmul.h"
#include "ops/reference/matmul.h"
#include "packed_weights.h"

namespace sluice::testing {
namespace {

struct Product {
  int64_t n;
  int64_t k;
  bool bias;
};

class MatmulShapesTest : public ::testing::TestWithParam<Product> {};

INSTANTIATE_TEST_SUITE_P(Shapes, MatmulShapesTest,
                         ::testing::Values(Product{64, 64, false}, Product{136, 200, true},
                                           Product{264, 2056, false}, Product{40, 3072, true},
                                           Product{1608, 136, true}, Product{4104, 72, false},
                                           Product{6008, 200, false}, Product{9000, 40, true},
                                           Product{34000, 24, false}));

reference::MatmulInput random_input(const Product& product, int64_t m) {
  const auto seed = static_cast<uint32_t>(product.n * 31 + product.k);
  return {.x = random_bf16(m * product.k, seed),
          .weight = random_bf16(product.n * product.k, seed + 1),
          .bias = product.bias ? random_bf16(product.n, seed + 2) : std::vector<BFloat16>{},
          .m = m,
          .n = product.n,
          .k = product.k};
}

// The first m rows of the product.
TensorView multiply(Machine& machine, const reference::MatmulInput& input, int64_t m,
                    const PackedWeight& weight, DType dtype) {
  const std::vector<BFloat16> rows(input.x.begin(), input.x.begin() + m * input.k);
  MatmulArgs args{.x = machine.tensor(rows, {m, input.k}),
                  .weight = weight,
                  .bias = {},
                  .out = machine.tensor(dtype, {m, input.n})};
  if (!input.bias.empty()) args.bias = machine.tensor(input.bias, {input.n});
  matmul(machine.stream(), args);
  machine.synchronize();
  return args.out;
}

// The bounds of matmul_test.cc: k + 1 roundings of a sum in any order, then that of the output.
void expect_near(const TensorView& out, const reference::MatmulInput& input,
                 const reference::MatmulOutput& truth) {
  const double unit = out.dtype() == DType::kF32 ? 0.0 : kUnitBF16;
  const double gamma = static_cast<double>(input.k + 1) * kUnitF32;
  const auto count = static_cast<size_t>(out.num_elements());
  std::vector<double> bound;
  for (size_t i = 0; i < count; ++i) {
    const double summation = gamma * truth.magnitude[i];
    bound.push_back(summation + unit * (std::abs(truth.value[i]) + summation));
  }
  const double relative = unit + 4.0 * std::sqrt(static_cast<double>(input.k)) * kUnitF32;
  const std::vector<double> expected(truth.value.begin(),
                                     truth.value.begin() + static_cast<int64_t>(count));
  expect_close(out, expected, bound, relative * relative);
}

TEST_P(MatmulShapesTest, AreNearTheReference) {
  Machine machine;
  const reference::MatmulInput input = random_input(GetParam(), 130);
  const reference::MatmulOutput truth = reference::matmul(input);
  const PackedWeight weight = pack(machine, input.weight, input.n, input.k);
  for (const int64_t m : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 130}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(::testing::Message() << "m " << m << " " << dtype_name(dtype));
      expect_near(multiply(machine, input, m, weight, dtype), input, truth);
    }
  }
}

// Decode steps may be padded because, up to 16 rows, the bits of a row do not depend on the number
// of rows. On the CPU device that holds for any number of rows.
TEST_P(MatmulShapesTest, AFewRowsHaveTheBitsOfOne) {
  Machine machine;
  const reference::MatmulInput input = random_input(GetParam(), 16);
  const PackedWeight weight = pack(machine, input.weight, input.n, input.k);
  const TensorView all = multiply(machine, input, 16, weight, DType::kF32);
  for (const int64_t m : {1, 2, 5, 8, 9, 15}) {
    const TensorView few = multiply(machine, input, m, weight, DType::kF32);
    EXPECT_TRUE(bytes_of(few) == bytes_of(all.rows(0, m))) << m << " rows";
  }
}

// A repeated product has the same bits.
TEST_P(MatmulShapesTest, AreRepeatedBitForBit) {
  Machine machine;
  const reference::MatmulInput input = random_input(GetParam(), 130);
  const PackedWeight weight = pack(machine, input.weight, input.n, input.k);
  for (const int64_t m : {3, 65, 130}) {
    const TensorView first = multiply(machine, input, m, weight, DType::kBF16);
    for (int i = 0; i < 5; ++i) {
      const TensorView again = multiply(machine, input, m, weight, DType::kBF16);
      ASSERT_TRUE(bytes_of(again) == bytes_of(first)) << m << " rows";
    }
  }
}

// Parts of any height, packed in any order, share panels of a backend's layout. The result must be
// the weight that one call packs, and products must have the same bits.
TEST(PackParts, OfAnyHeightShareAPanel) {
  constexpr int64_t kCols = 50;
  for (const std::vector<int64_t>& heights : std::vector<std::vector<int64_t>>{
           {8, 4, 4}, {1, 1, 1}, {172, 172}, {17, 40, 3}, {5, 11, 16, 1}}) {
    Machine machine;
    const int64_t n = std::accumulate(heights.begin(), heights.end(), int64_t{0});
    const reference::MatmulInput input = random_input({n, kCols, false}, 3);
    std::vector<BFloat16> rows = input.weight;
    const PackedWeight parts = make_weight(machine, n, kCols);
    int64_t row_end = n;  // the last part first
    for (auto height = heights.rbegin(); height != heights.rend(); ++height) {
      row_end -= *height;
      pack_weight(machine.stream(),
                  {.src = TensorView(rows.data() + row_end * kCols, DType::kBF16, {*height, kCols}),
                   .dst = parts,
                   .row_begin = row_end});
    }
    machine.synchronize();
    std::vector<int32_t> ids(static_cast<size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
    const TensorView out = machine.tensor(DType::kBF16, {n, kCols});
    embedding(machine.stream(),
              {.token_ids = machine.tensor(ids, {n}), .table = parts, .out = out});
    machine.synchronize();
    EXPECT_TRUE(bytes_of(out) == bytes_of(machine.tensor(rows, {n, kCols}))) << n << " rows";
    EXPECT_TRUE(bytes_of(multiply(machine, input, 3, parts, DType::kF32)) ==
                bytes_of(multiply(machine, input, 3, pack(machine, input.weight, input.n, input.k),
                                  DType::kF32)))
        << n << " rows";
  }
}

// A matrix that needs several rounds of any staging memory: no piece may be lost or overwritten too
// early.
template <typename T>
void expect_large_matrix_survives(uint32_t step) {
  constexpr int64_t kRows = 2100;
  constexpr int64_t kColumns = 8200;
  Machine machine;
  std::vector<T> values;
  values.reserve(kRows * kColumns);
  uint32_t state = 1;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    state = state * 1664525u + step;
    values.emplace_back(static_cast<float>(state >> 24) - 128.0f);  // exact in bf16
  }
  const PackedWeight weight = make_weight(machine, kRows, kColumns);
  pack_weight(machine.stream(),
              {.src = TensorView(values.data(), kDTypeOf<T>, {kRows, kColumns}), .dst = weight});
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kRows; i += 3) ids.push_back(i);
  const auto count = static_cast<int64_t>(ids.size());
  const TensorView out = machine.tensor(DType::kBF16, {count, kColumns});
  embedding(machine.stream(),
            {.token_ids = machine.tensor(ids, {count}), .table = weight, .out = out});
  machine.synchronize();
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t i = 0; i < kColumns; ++i) {
      const T& value = values[static_cast<size_t>(ids[static_cast<size_t>(row)] * kColumns + i)];
      ASSERT_EQ(out.data<BFloat16>()[row * kColumns + i].bits,
                BFloat16(static_cast<float>(value)).bits)
          << "row " << ids[static_cast<size_t>(row)] << " column " << i;
    }
  }
}

TEST(PackLargeWeight, OfBF16Survives) { expect_large_matrix_survives<BFloat16>(1013904223u); }
TEST(PackLargeWeight, OfF32Survives) { expect_large_matrix_survives<float>(1013904225u); }

}  // namespace
}  // namespace sluice::testing
