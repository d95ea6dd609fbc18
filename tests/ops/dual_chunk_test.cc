// Attention whose queries differ by zones of keys (dual chunk attention) against the formula in
// double precision: every query rotated for its distance to every key, which is not rotated at all.
//
// Reveals: a zone with another zone's queries or rotation, borders off by one, a length factor on
// keys, and a state that is not carried from zone to zone. Cutting a walk into runs, or a call into
// rows, must change no bit.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "op_test_util.h"
#include "ops/attention/attention.h"
#include "ops/rows/rope.h"

namespace sluice::testing {
namespace {

constexpr int32_t kQHeads = 4;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 64;
constexpr int32_t kHalf = kHeadDim / 2;
constexpr int32_t kBlockTokens = 64;
constexpr double kTheta = 10000.0;

// A model's sizes. Chunks of 256 tokens.
struct Chunks {
  int32_t chunk_tokens = 256;
  int32_t chunk_size = 320;
  int32_t factor_from = 300;
};

struct Problem {
  int32_t num_tokens;
  Chunks chunks;
  std::vector<BFloat16> qkv;  // [num_tokens, q heads, k heads, v heads, head_dim], not rotated
};

constexpr int64_t kWidth = (kQHeads + 2 * kKvHeads) * kHeadDim;

Problem random_problem(int32_t num_tokens, const Chunks& chunks) {
  return {num_tokens, chunks, random_bf16(num_tokens * kWidth, 7)};
}

// ---- The formula -------------------------------------------------------------------------------

std::vector<double> head_of(const Problem& problem, int32_t row, int32_t head) {
  const auto begin = problem.qkv.begin() + row * kWidth + int64_t{head} * kHeadDim;
  std::vector<double> values;
  std::for_each(begin, begin + kHeadDim,
                [&](BFloat16 value) { values.push_back(static_cast<float>(value)); });
  return values;
}

std::vector<double> rotated(const std::vector<double>& x, double distance) {
  std::vector<double> result(kHeadDim);
  for (int32_t i = 0; i < kHalf; ++i) {
    const double angle = distance * std::pow(kTheta, -2.0 * i / kHeadDim);
    result[i] = x[i] * std::cos(angle) - x[i + kHalf] * std::sin(angle);
    result[i + kHalf] = x[i + kHalf] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return result;
}

// The distance by which the query of row p is rotated relative to key j.
double distance_of(const Chunks& chunks, int32_t p, int32_t j) {
  const int32_t c = chunks.chunk_tokens;
  const int32_t in_chunk = p % c;
  const int32_t apart = p / c - j / c;
  int32_t position = in_chunk;
  if (apart == 1) position = std::min(in_chunk + c, chunks.chunk_size);
  if (apart > 1) position = std::min(2 * c - 1, chunks.chunk_size);
  return position - j % c;
}

double factor_of(const Chunks& chunks, int32_t p) {
  const double f =
      std::max(1.0, 1.0 + 0.1 * std::log((p + 1.0) / static_cast<double>(chunks.factor_from)));
  return f * f;
}

// The output of one row and query head.
std::vector<double> attended(const Problem& problem, int32_t p, int32_t head) {
  const int32_t kv_head = head / (kQHeads / kKvHeads);
  const std::vector<double> q = head_of(problem, p, head);
  std::vector<double> scores;
  for (int32_t j = 0; j <= p; ++j) {
    const std::vector<double> k = head_of(problem, j, kQHeads + kv_head);
    const std::vector<double> turned = rotated(q, distance_of(problem.chunks, p, j));
    scores.push_back(std::inner_product(k.begin(), k.end(), turned.begin(), 0.0) *
                     factor_of(problem.chunks, p) / std::sqrt(kHeadDim));
  }
  const double largest = *std::ranges::max_element(scores);
  std::vector<double> out(kHeadDim);
  double sum = 0;
  for (int32_t j = 0; j <= p; ++j) {
    const double weight = std::exp(scores[j] - largest);
    const std::vector<double> v = head_of(problem, j, kQHeads + kKvHeads + kv_head);
    sum += weight;
    for (int32_t d = 0; d < kHeadDim; ++d) out[d] += weight * v[d];
  }
  for (double& value : out) value /= sum;
  return out;
}

// ---- The ops -----------------------------------------------------------------------------------

// Rows [first_row, num_tokens) attend to all tokens, in runs that end at `cuts` and at the end.
std::vector<BFloat16> run(const Problem& problem, int32_t first_row = 0,
                          std::vector<int32_t> cuts = {}) {
  Machine machine;
  Stream& stream = machine.stream();
  const int32_t n = problem.num_tokens;
  const auto numbers = [&](int32_t count, int32_t first) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), first);
    return values;
  };
  std::vector<float> inv_freq;
  for (int32_t i = 0; i < kHalf; ++i) {
    inv_freq.push_back(static_cast<float>(std::pow(kTheta, -2.0 * i / kHeadDim)));
  }
  const TensorView frequencies = machine.tensor(inv_freq, {kHalf});
  const TensorView positions = machine.tensor(numbers(n, 0), {n});
  const TensorView qkv = machine.tensor(problem.qkv, {n, kWidth});
  const int32_t num_blocks = (n + kBlockTokens - 1) / kBlockTokens;
  KvBlocksView kv{
      .num_blocks = num_blocks,
      .shape = {.num_kv_heads = kKvHeads, .head_dim = kHeadDim, .block_tokens = kBlockTokens}};
  kv.stride_bytes = kv.shape.block_bytes();
  kv.base = machine.poisoned(kv.stride_bytes * static_cast<size_t>(num_blocks));
  const TensorView written = machine.tensor(numbers(n, 0), {n});
  const TensorView none = machine.tensor(std::vector<int32_t>(static_cast<size_t>(n), -1), {n});
  const auto rotate = [&](RopeZone zone, bool writes) {
    const TensorView cos_sin = machine.tensor(DType::kF32, {n, 2, kHalf});
    const TensorView q = machine.tensor(DType::kBF16, {n, kQHeads, kHeadDim});
    rope_angles(stream, {.positions = positions,
                         .inv_freq = frequencies,
                         .chunks = {.zone = zone,
                                    .chunk_tokens = problem.chunks.chunk_tokens,
                                    .chunk_size = problem.chunks.chunk_size,
                                    .factor_from =
                                        zone == RopeZone::kKeys ? 0 : problem.chunks.factor_from},
                         .cos_sin = cos_sin});
    rope_and_write_kv(stream, {.qkv = qkv,
                               .q_norm = {},
                               .k_norm = {},
                               .cos_sin = cos_sin,
                               .q_out = q,
                               .kv = kv,
                               .kv_rows = writes ? written : none});
    return q.rows(first_row, n - first_row);
  };
  rotate(RopeZone::kKeys, true);
  const int32_t num_rows = n - first_row;
  AttentionArgs args{.q = rotate(RopeZone::kOwn, false),
                     .out = machine.tensor(DType::kBF16, {num_rows, kQHeads, kHeadDim}),
                     .zones = {.before = rotate(RopeZone::kBefore, false),
                               .far = rotate(RopeZone::kFar, false),
                               .chunk_tokens = problem.chunks.chunk_tokens},
                     .scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim)),
                     .batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, num_rows}, {2}),
                               .first_pos = machine.tensor(std::vector<int32_t>{first_row}, {1}),
                               .max_rows = num_rows,
                               .max_kv_tokens = n},
                     .kv = kv};
  args.state = {.acc = machine.tensor(DType::kF32, {num_rows, kQHeads, kHeadDim}),
                .max = machine.tensor(DType::kF32, {num_rows, kQHeads}),
                .sum = machine.tensor(DType::kF32, {num_rows, kQHeads})};
  cuts.push_back(n);
  int32_t begin = 0;
  for (const int32_t end : cuts) {
    args.kv_begin = machine.tensor(std::vector<int32_t>{begin}, {1});
    args.kv_end = machine.tensor(std::vector<int32_t>{end}, {1});
    const int32_t first_block = begin / kBlockTokens;
    args.block_table = machine.tensor(numbers(num_blocks - first_block, first_block),
                                      {1, num_blocks - first_block});
    args.first = begin == 0;
    args.last = end == n;
    attention(stream, args);
    begin = end;
  }
  machine.synchronize();
  return values_of<BFloat16>(args.out);
}

std::vector<uint16_t> bits_of(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> bits;
  for (const BFloat16 value : values) bits.push_back(value.bits);
  return bits;
}

class DualChunkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing_cpu()) GTEST_SKIP() << "skipped: CUDA has no kernel for zones yet";
  }
};

// Around every border: the last rows of a chunk, the first of the next, and far past both.
TEST_F(DualChunkTest, MatchesTheFormula) {
  for (const Chunks& chunks : {Chunks{}, Chunks{.chunk_size = 260}, Chunks{.chunk_size = 511}}) {
    const int32_t c = chunks.chunk_tokens;
    for (const int32_t n : {c - 1, c, c + 1, 2 * c, 2 * c + 1, 3 * c + 7}) {
      SCOPED_TRACE(fmt::format("chunk {} tokens {}", chunks.chunk_size, n));
      const Problem problem = random_problem(n, chunks);
      const std::vector<BFloat16> out = run(problem);
      double error = 0;
      double power = 0;
      for (const int32_t p : {0, 5, c - 2, c - 1, c, c + 60, 2 * c - 1, 2 * c, n - 1}) {
        if (p >= n) continue;
        for (int32_t head = 0; head < kQHeads; ++head) {
          const std::vector<double> expected = attended(problem, p, head);
          const auto* got = out.data() + (p * kQHeads + head) * kHeadDim;
          for (int32_t d = 0; d < kHeadDim; ++d) {
            error += std::pow(static_cast<float>(got[d]) - expected[d], 2);
            power += expected[d] * expected[d];
          }
        }
      }
      // Rotated queries and keys are bf16, and so is the output.
      EXPECT_LT(error / power, 1e-4);
    }
  }
}

TEST_F(DualChunkTest, CutsAndRowsChangeNoBit) {
  const Problem problem = random_problem(3 * 256 + 40, {});
  const std::vector<uint16_t> whole = bits_of(run(problem));
  EXPECT_EQ(bits_of(run(problem, 0, {64, 320, 512, 704})), whole);
  constexpr int64_t kRow = kQHeads * kHeadDim;
  for (const int32_t first : {1, 255, 256, 300, 511, 512, 700, 807}) {
    EXPECT_EQ(bits_of(run(problem, first, {256})),
              std::vector(whole.begin() + first * kRow, whole.end()))
        << "rows from " << first;
  }
}

}  // namespace
}  // namespace sluice::testing
