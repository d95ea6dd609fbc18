// Rotary embedding and the KV write against double precision; only the given entries of the KV
// cache may be written.
#include "ops/rows/rope.h"

#include <set>

#include "op_test_util.h"
#include "ops/reference/rope.h"

namespace sluice::testing {
namespace {

std::vector<float> inverse_frequencies(int64_t half, double base) {
  std::vector<float> values;
  for (int64_t i = 0; i < half; ++i) {
    values.push_back(static_cast<float>(std::pow(base, -static_cast<double>(i) / half)));
  }
  return values;
}

RopeAnglesArgs make_angles(Machine& machine, const std::vector<int32_t>& positions, int64_t half,
                           float factor) {
  const auto m = static_cast<int64_t>(positions.size());
  return {.positions = machine.tensor(positions, {m}),
          .inv_freq = machine.tensor(inverse_frequencies(half, 1e6), {half}),
          .attention_factor = factor,
          .cos_sin = machine.tensor(DType::kF32, {m, 2, half})};
}

TEST(RopeAngles, AreExactUpToAMillion) {
  Machine machine;
  std::vector<int32_t> positions = {0, 1, 2, 32767, 131071, 999999, 1048575};
  for (int32_t p = 3; p < 1048576; p += 9973) positions.push_back(p);
  for (float factor : {1.0f, 1.3465736f}) {
    const RopeAnglesArgs args = make_angles(machine, positions, 64, factor);
    rope_angles(machine.stream(), args);
    machine.synchronize();
    const std::vector<double> expected = reference::rope_angles(args);
    // cosf and sinf are within one unit, the factor adds half; a result near 0 keeps its relative
    // accuracy because the argument is reduced exactly.
    std::vector<double> bound;
    for (double value : expected) bound.push_back(3.0 * kUnitF32 * std::abs(value) + 1e-30);
    expect_close(args.cos_sin, expected, bound, 4.0 * kUnitF32 * kUnitF32);
  }
}

// Channels that do not rotate keep their values, whatever the factor of the others.
TEST(RopeAngles, AFrequencyOfZeroDoesNotTurn) {
  Machine machine;
  RopeAnglesArgs args = make_angles(machine, {0, 7, 100000}, 6, 1.5f);
  std::fill_n(args.inv_freq.data<float>() + 2, 4, 0.0f);
  rope_angles(machine.stream(), args);
  machine.synchronize();
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t i = 2; i < 6; ++i) {
      EXPECT_EQ(element(args.cos_sin, row * 12 + i), 1.0);
      EXPECT_EQ(element(args.cos_sin, row * 12 + 6 + i), 0.0);
    }
  }
  EXPECT_EQ(element(args.cos_sin, 0), 1.5);
}

struct RopeShape {
  int32_t head_dim;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t block_tokens;
  bool norm;
};

class RopeTest : public ::testing::TestWithParam<RopeShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         ::testing::Values(RopeShape{128, 4, 2, 16, true},
                                           RopeShape{64, 7, 1, 64, false},
                                           RopeShape{16, 2, 2, 16, true},
                                           RopeShape{80, 3, 3, 32, false}));

constexpr int32_t kRows = 23;
constexpr int32_t kBlocks = 5;

RopeAndWriteKvArgs make_args(Machine& machine, const RopeShape& shape) {
  const int64_t width = (shape.num_q_heads + 2 * shape.num_kv_heads) * shape.head_dim;
  std::vector<int32_t> positions;
  std::vector<int32_t> kv_rows;
  for (int32_t i = 0; i < kRows; ++i) {
    positions.push_back(1000 + i);
    kv_rows.push_back((i * 7 + 3) % (kBlocks * shape.block_tokens));
  }
  const RopeAnglesArgs angles = make_angles(machine, positions, shape.head_dim / 2, 1.0f);
  rope_angles(machine.stream(), angles);
  machine.synchronize();
  RopeAndWriteKvArgs args;
  args.qkv = machine.tensor(random_bf16(kRows * width, 11, 2.0f), {kRows, width});
  if (shape.norm) {
    args.q_norm = machine.tensor(random_bf16(shape.head_dim, 12), {shape.head_dim});
    args.k_norm = machine.tensor(random_bf16(shape.head_dim, 13), {shape.head_dim});
  }
  args.cos_sin = angles.cos_sin;
  args.q_out = machine.tensor(DType::kBF16, {kRows, shape.num_q_heads, shape.head_dim});
  args.kv.shape = {.num_kv_heads = shape.num_kv_heads,
                   .head_dim = shape.head_dim,
                   .block_tokens = shape.block_tokens};
  args.kv.num_blocks = kBlocks;
  args.kv.stride_bytes = args.kv.shape.block_bytes() + 512;
  args.kv.base = machine.poisoned(args.kv.stride_bytes * kBlocks);
  args.kv_rows = machine.tensor(kv_rows, {kRows});
  return args;
}

// Norm: as in norm_test. Rotation: two products and a sum of terms that may cancel, so that the
// error scales with the larger of the pair, not with the result.
std::vector<double> rotation_bound(const std::vector<double>& expected, int32_t head_dim) {
  std::vector<double> bound;
  const size_t half = static_cast<size_t>(head_dim) / 2;
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool is_low = i % static_cast<size_t>(head_dim) < half;
    const double other = expected[is_low ? i + half : i - half];
    const double radius = std::hypot(expected[i], other);
    bound.push_back(kUnitBF16 * std::abs(expected[i]) +
                    (head_dim / 2.0 + 16.0) * kUnitF32 * radius);
  }
  return bound;
}

TEST_P(RopeTest, MatchesTheReference) {
  Machine machine;
  const RopeShape shape = GetParam();
  const RopeAndWriteKvArgs args = make_args(machine, shape);
  rope_and_write_kv(machine.stream(), args);
  machine.synchronize();
  const reference::RopeAndWriteKvResult expected = reference::rope_and_write_kv(args);
  const double nmse = kUnitBF16 * kUnitBF16 / 2.0;
  expect_close(args.q_out, expected.q, rotation_bound(expected.q, shape.head_dim), nmse);
  const int64_t head_dim = shape.head_dim;
  std::vector<BFloat16> k, v;
  for (int32_t row = 0; row < kRows; ++row) {
    const int32_t kv_row = args.kv_rows.data<int32_t>()[row];
    const int32_t block = kv_row / shape.block_tokens;
    const int32_t token = kv_row % shape.block_tokens;
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      const BFloat16* key = args.kv.keys<BFloat16>(block, head, token);
      const BFloat16* value = args.kv.values<BFloat16>(block, head, token);
      k.insert(k.end(), key, key + head_dim);
      v.insert(v.end(), value, value + head_dim);
    }
  }
  const auto count = static_cast<int64_t>(k.size());
  expect_close(machine.tensor(k, {count}), expected.k, rotation_bound(expected.k, shape.head_dim),
               nmse);
  expect_close(machine.tensor(v, {count}), expected.v, std::vector<double>(v.size(), 0.0), 0.0);
}

// Heads that are padded with zeros: the padding must not count in the norm.
TEST(RopeNorm, IsOverTheNamedChannels) {
  Machine machine;
  RopeAndWriteKvArgs args = make_args(machine, {32, 4, 2, 16, true});
  args.norm_channels = 24;
  rope_and_write_kv(machine.stream(), args);
  machine.synchronize();
  const reference::RopeAndWriteKvResult expected = reference::rope_and_write_kv(args);
  expect_close(args.q_out, expected.q, rotation_bound(expected.q, 32), kUnitBF16 * kUnitBF16 / 2.0);
}

// The weights of both norms as what is added to one, and heads of 256 of which a quarter rotates.
TEST(RopeNorm, AnOffsetIsAddedToItsWeights) {
  Machine machine;
  RopeAndWriteKvArgs args = make_args(machine, {256, 3, 1, 16, true});
  args.norm_offset = 1.0f;
  for (int32_t row = 0; row < kRows; ++row) {
    float* cosines = args.cos_sin.data<float>() + row * 256;
    std::fill(cosines + 32, cosines + 128, 1.0f);
    std::fill(cosines + 160, cosines + 256, 0.0f);
  }
  rope_and_write_kv(machine.stream(), args);
  machine.synchronize();
  const reference::RopeAndWriteKvResult expected = reference::rope_and_write_kv(args);
  expect_close(args.q_out, expected.q, rotation_bound(expected.q, 256),
               kUnitBF16 * kUnitBF16 / 2.0);
  args.norm_offset = 0.0f;
  EXPECT_NE(reference::rope_and_write_kv(args).k, expected.k);
}

TEST_P(RopeTest, TouchesOnlyTheNamedEntries) {
  Machine machine;
  const RopeShape shape = GetParam();
  const RopeAndWriteKvArgs args = make_args(machine, shape);
  rope_and_write_kv(machine.stream(), args);
  machine.synchronize();
  std::set<int32_t> kv_rows;
  for (int32_t row = 0; row < kRows; ++row) kv_rows.insert(args.kv_rows.data<int32_t>()[row]);
  size_t num_written = 0;
  for (size_t i = 0; i < args.kv.stride_bytes * kBlocks; i += 2) {
    num_written += args.kv.base[i] != std::byte{0xFF} || args.kv.base[i + 1] != std::byte{0xFF};
  }
  EXPECT_EQ(num_written, kv_rows.size() * 2 * static_cast<size_t>(shape.num_kv_heads) *
                             static_cast<size_t>(shape.head_dim));
}

TEST_P(RopeTest, RowsWithoutASlotWriteNoKv) {
  Machine machine;
  const RopeShape shape = GetParam();
  RopeAndWriteKvArgs args = make_args(machine, shape);
  args.kv_rows = machine.tensor(std::vector<int32_t>(kRows, -1), {kRows});
  rope_and_write_kv(machine.stream(), args);
  machine.synchronize();
  for (size_t i = 0; i < args.kv.stride_bytes * kBlocks; ++i) {
    ASSERT_EQ(args.kv.base[i], std::byte{0xFF}) << "byte " << i;
  }
  const reference::RopeAndWriteKvResult expected = reference::rope_and_write_kv(args);
  expect_close(args.q_out, expected.q, rotation_bound(expected.q, shape.head_dim),
               kUnitBF16 * kUnitBF16 / 2.0);
}

TEST(RopeKvElement, IsRefusedWithoutAKernel) {
  Machine machine;
  RopeAndWriteKvArgs args = make_args(machine, {64, 4, 2, 16, true});
  args.kv.shape.element = kElementWithoutKernels;
  expect_no_kernel([&] { rope_and_write_kv(machine.stream(), args); });
}

TEST(RopeContractDeathTest, NamesTheSymbolThatIsWrong) {
  Machine machine;
  RopeAndWriteKvArgs args = make_args(machine, {64, 4, 2, 16, true});
  args.norm_channels = 65;
  EXPECT_DEATH(rope_and_write_kv(machine.stream(), args), "norm_channels must be 0 to head_dim");
  args.norm_channels = 0;
  args.k_norm = TensorView();
  EXPECT_DEATH(rope_and_write_kv(machine.stream(), args), "q_norm and k_norm must be both");
  args.q_norm = TensorView();
  args.kv.shape.num_kv_heads = 3;
  EXPECT_DEATH(rope_and_write_kv(machine.stream(), args), "num_q_heads must be a multiple");
}

}  // namespace
}  // namespace sluice::testing
