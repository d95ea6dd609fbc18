// SwiGLU against double precision, and the gathering of rows.
#include "ops/rows/activation.h"

#include <limits>

#include "op_test_util.h"
#include "ops/cpu/scalar_math.h"
#include "ops/reference/activation.h"

namespace sluice::testing {
namespace {

TEST(FastExp, StaysWithinTwoUnitsOfTheLastPlace) {
  double worst = 0.0;
  for (float x = -87.3f; x < 88.3f; x += 0.00037f) {
    const double exact = std::exp(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(cpu::fast_exp(x) - exact) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(cpu::fast_exp(0.0f), 1.0f);
  EXPECT_EQ(cpu::fast_exp(-infinity), 0.0f);
  EXPECT_EQ(cpu::fast_exp(-90.0f), 0.0f);
  EXPECT_EQ(cpu::fast_exp(infinity), infinity);
  EXPECT_TRUE(std::isnan(cpu::fast_exp(std::nanf(""))));
}

TEST(FastLog, StaysWithinTwoUnitsOfTheLastPlace) {
  double worst = 0.0;
  for (float x = 1.2e-38f; x < 3e38f; x *= 1.00001f) {
    const double exact = std::log(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(cpu::fast_log(x) - exact) / ulp);
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_EQ(cpu::fast_log(1.0f), 0.0f);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float other : {0.0f, -1.0f, infinity, -infinity, std::nanf("")}) {
    EXPECT_TRUE(std::isnan(cpu::fast_log(other))) << other;
  }
}

TEST(RoundToBf16, IsTheRoundingOfTheType) {
  std::mt19937 generator(5);
  for (int i = 0; i < 100000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(generator()));
    ASSERT_EQ(cpu::round_to_bf16(value), BFloat16(value).bits) << value;
  }
}

TEST(Swiglu, MatchesTheReference) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 3}, {5, 300}, {40, 3072}}) {
    Machine machine;
    SwigluArgs args;
    args.gate_up = machine.tensor(random_bf16(rows * 2 * width, 7, 4.0f), {rows, 2 * width});
    args.out = machine.tensor(DType::kBF16, {rows, width});
    swiglu(machine.stream(), args);
    machine.synchronize();
    const std::vector<double> expected = reference::swiglu(args);
    // exp is off by 2 ulp, then an addition, a division and a product; then bf16.
    std::vector<double> bound;
    for (double value : expected) bound.push_back((12.0 * kUnitF32 + kUnitBF16) * std::abs(value));
    expect_close(args.out, expected, bound, kUnitBF16 * kUnitBF16 / 2.0);
  }
}

TEST(Swiglu, ExtremeGatesKeepTheirLimits) {
  Machine machine;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<BFloat16> row;
  for (float gate : {-1e30f, -100.0f, -80.0f, 0.0f, 80.0f, 1e30f, infinity, std::nanf("")}) {
    row.emplace_back(gate);
  }
  for (int i = 0; i < 8; ++i) row.emplace_back(2.0f);
  SwigluArgs args{.gate_up = machine.tensor(row, {1, 16}),
                  .out = machine.tensor(DType::kBF16, {1, 8})};
  swiglu(machine.stream(), args);
  machine.synchronize();
  EXPECT_EQ(element(args.out, 0), 0.0);
  EXPECT_EQ(element(args.out, 1), 0.0);  // exactly -7e-42: below what f32 keeps here
  EXPECT_LT(element(args.out, 2), 0.0);
  EXPECT_EQ(element(args.out, 3), 0.0);
  EXPECT_EQ(element(args.out, 4), 160.0);
  EXPECT_NEAR(element(args.out, 5), 2e30, 2e30 * kUnitBF16 * 2.0);
  EXPECT_TRUE(std::isinf(element(args.out, 6)));
  EXPECT_TRUE(std::isnan(element(args.out, 7)));
}

// A product close to the middle of two bf16 values may be rounded to either.
std::vector<double> bound_of_gated(const std::vector<double>& expected, const TensorView& gate_up) {
  const int64_t width = gate_up.dim(1) / 2;
  std::vector<double> bound;
  for (int64_t i = 0; i < static_cast<int64_t>(expected.size()); ++i) {
    const int64_t first = i / width * 2 * width + i % width;
    const double gate = std::abs(element(gate_up, first));
    const double up = std::abs(element(gate_up, first + width));
    bound.push_back(4.4 * kUnitBF16 * gate * up + 2.0 * kUnitBF16 * std::abs(expected[i]) + 1e-6);
  }
  return bound;
}

TEST(GatedProduct, IsTheProductAndThenTheGate) {
  struct Shape {
    int64_t width, k;
  };
  for (const Shape& shape : {Shape{3072, 1024}, {520, 200}, {24, 72}, {20, 36}, {4100, 64}}) {
    Machine machine;
    const std::vector<BFloat16> weights = random_bf16(2 * shape.width * shape.k, 3);
    PackedWeight weight{.num_rows = 2 * shape.width, .num_cols = shape.k};
    weight.data = machine.poisoned(
        packed_weight_bytes(machine.stream().device(), weight.num_rows, weight.num_cols));
    pack_weight(machine.stream(),
                {.src = TensorView(const_cast<BFloat16*>(weights.data()), DType::kBF16,
                                   {weight.num_rows, weight.num_cols}),
                 .dst = weight});
    for (const int64_t m : {1, 2, 8, 9, 16, 17}) {
      SCOPED_TRACE(fmt::format("{} rows, {} x {}", m, shape.width, shape.k));
      const std::vector<BFloat16> x = random_bf16(m * shape.k, 5, 0.1f);
      GatedProductArgs args{.x = machine.tensor(x, {m, shape.k}),
                            .weight = weight,
                            .gate_up = machine.tensor(DType::kBF16, {m, 2 * shape.width}),
                            .out = machine.tensor(DType::kBF16, {m, shape.width})};
      gated_product(machine.stream(), args);
      SwigluArgs gate{.gate_up = machine.tensor(DType::kBF16, {m, 2 * shape.width}),
                      .out = machine.tensor(DType::kBF16, {m, shape.width})};
      matmul(machine.stream(), {.x = args.x, .weight = weight, .bias = {}, .out = gate.gate_up});
      swiglu(machine.stream(), gate);
      machine.synchronize();
      if (testing_cpu()) {
        EXPECT_TRUE(bytes_of(args.out) == bytes_of(gate.out));
      }
      const std::vector<double> expected = reference::swiglu(gate);
      expect_close(args.out, expected, bound_of_gated(expected, gate.gate_up),
                   kUnitBF16 * kUnitBF16);
    }
  }
}

TEST(GatherRows, CopiesTheNamedRows) {
  Machine machine;
  GatherRowsArgs args;
  args.x = machine.tensor(random_bf16(10 * 24, 3), {10, 24});
  args.indices = machine.tensor(std::vector<int32_t>{9, 0, 4, 4}, {4});
  args.out = machine.tensor(DType::kBF16, {4, 24});
  gather_rows(machine.stream(), args);
  machine.synchronize();
  const int64_t expected[] = {9, 0, 4, 4};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(bytes_of(args.out.rows(i, 1)) == bytes_of(args.x.rows(expected[i], 1)));
  }
}

}  // namespace
}  // namespace sluice::testing
