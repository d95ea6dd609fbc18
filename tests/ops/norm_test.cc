// RMSNorm against double precision; a row never depends on its neighbours.
#include "ops/rows/norm.h"

#include "op_test_util.h"
#include "ops/reference/norm.h"

namespace sluice::testing {
namespace {

struct NormShape {
  int64_t num_rows;
  int64_t hidden;
  bool residual;
};

class NormTest : public ::testing::TestWithParam<NormShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, NormTest,
                         ::testing::Values(NormShape{1, 16, false}, NormShape{3, 1024, false},
                                           NormShape{5, 1000, true}, NormShape{1, 7, true},
                                           NormShape{300, 896, true}, NormShape{0, 64, true}));

RmsNormArgs make_args(Machine& machine, const NormShape& shape) {
  RmsNormArgs args;
  const int64_t count = shape.num_rows * shape.hidden;
  args.x = machine.tensor(random_bf16(count, 1, 3.0f), {shape.num_rows, shape.hidden});
  if (shape.residual) {
    args.residual = machine.tensor(random_bf16(count, 2), {shape.num_rows, shape.hidden});
  }
  args.weight = machine.tensor(random_bf16(shape.hidden, 3), {shape.hidden});
  args.out = machine.tensor(DType::kBF16, {shape.num_rows, shape.hidden});
  return args;
}

TEST_P(NormTest, MatchesTheReference) {
  Machine machine;
  const NormShape shape = GetParam();
  const RmsNormArgs args = make_args(machine, shape);
  const std::vector<double> expected = reference::rms_norm(args);
  std::vector<BFloat16> sums;
  for (int64_t i = 0; shape.residual && i < args.x.num_elements(); ++i) {
    sums.emplace_back(static_cast<float>(element(args.x, i) + element(args.residual, i)));
  }
  rms_norm(machine.stream(), args);
  machine.synchronize();
  // The sum of squares has `hidden` roundings, at worst of the same sign; the root halves their
  // relative error; then follow a few products and one rounding to bf16.
  const double relative = (static_cast<double>(shape.hidden) / 2.0 + 8.0) * kUnitF32 + kUnitBF16;
  std::vector<double> bound;
  for (double value : expected) bound.push_back(relative * std::abs(value));
  expect_close(args.out, expected, bound, kUnitBF16 * kUnitBF16 / 2.0);
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(args.residual.data<BFloat16>()[i].bits, sums[i].bits) << "residual " << i;
  }
}

TEST(Norm, ARowAloneAndInPlaceHasTheSameBits) {
  for (const auto& [hidden, has_residual] :
       {std::pair(40, true), {512, false}, {512, true}, {1000, true}, {1024, true}, {4096, true}}) {
    Machine machine;
    const RmsNormArgs crowd = make_args(machine, {200, hidden, has_residual});
    const auto row_of = [&](const TensorView& all, int64_t row) {
      const TensorView view = all.rows(row, 1);
      return machine.tensor(values_of<BFloat16>(view), {1, hidden});
    };
    RmsNormArgs alone[3];
    const int64_t rows[] = {0, 77, 199};
    for (int i = 0; i < 3; ++i) {
      alone[i] = crowd;
      alone[i].x = row_of(crowd.x, rows[i]);
      if (has_residual) alone[i].residual = row_of(crowd.residual, rows[i]);
      alone[i].out = alone[i].x;
      rms_norm(machine.stream(), alone[i]);
    }
    rms_norm(machine.stream(), crowd);
    machine.synchronize();
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(bytes_of(alone[i].out) == bytes_of(crowd.out.rows(rows[i], 1))) << hidden;
      if (!has_residual) continue;
      EXPECT_TRUE(bytes_of(alone[i].residual) == bytes_of(crowd.residual.rows(rows[i], 1)));
    }
  }
}

// 1 + w of a small w keeps what bf16 would lose.
TEST(Norm, AnOffsetIsAddedToTheWeightInF32) {
  for (const int64_t hidden : {7, 64, 1000}) {
    Machine machine;
    RmsNormArgs args = make_args(machine, {3, hidden, true});
    args.weight = machine.tensor(random_bf16(hidden, 3, 0.004f), {hidden});
    args.weight_offset = 1.0f;
    const std::vector<double> expected = reference::rms_norm(args);
    rms_norm(machine.stream(), args);
    machine.synchronize();
    const double relative = (static_cast<double>(hidden) / 2.0 + 8.0) * kUnitF32 + kUnitBF16;
    std::vector<double> bound;
    for (double value : expected) bound.push_back(relative * std::abs(value));
    expect_close(args.out, expected, bound, kUnitBF16 * kUnitBF16 / 2.0);
  }
}

TEST(Norm, ARowOfZerosStaysZeroAndNanStaysInItsRow) {
  Machine machine;
  RmsNormArgs args = make_args(machine, {3, 64, false});
  std::fill_n(args.x.data<BFloat16>(), 64, BFloat16(0.0f));
  args.x.data<BFloat16>()[64 + 9] = BFloat16(std::nanf(""));
  rms_norm(machine.stream(), args);
  machine.synchronize();
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(element(args.out, i), 0.0);
    EXPECT_TRUE(std::isnan(element(args.out, 64 + i)));
    EXPECT_TRUE(std::isfinite(element(args.out, 128 + i)));
  }
}

TEST(NormContractDeathTest, NamesTheSymbolThatIsWrong) {
  Machine machine;
  RmsNormArgs args = make_args(machine, {2, 64, false});
  args.weight = machine.tensor(DType::kBF16, {63});
  EXPECT_DEATH(rms_norm(machine.stream(), args), "weight is bf16.63., but hidden is 64 by x");
  args.weight = TensorView();
  EXPECT_DEATH(rms_norm(machine.stream(), args), "weight is absent");
  args.weight = machine.tensor(DType::kF32, {64});
  EXPECT_DEATH(rms_norm(machine.stream(), args), "weight is f32.64., must be bf16");
}

}  // namespace
}  // namespace sluice::testing
