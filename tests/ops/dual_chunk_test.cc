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

constexpr double kTheta = 10000.0;

// Each has another kernel on CUDA: by head size, by tokens of a block, and by what KV is.
struct Shape {
  int32_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  int32_t block_tokens = 64;
  KvElement element = KvElement::kBFloat16;

  int32_t half() const { return head_dim / 2; }
  int64_t width() const { return int64_t{q_heads + 2 * kv_heads} * head_dim; }
  int64_t row() const { return int64_t{q_heads} * head_dim; }
  std::string name() const {
    return fmt::format("{} heads, {} of KV, {} channels, blocks of {}, {}", q_heads, kv_heads,
                       head_dim, block_tokens, element == KvElement::kE4m3 ? "e4m3" : "bf16");
  }
};

// Groups of 7 (Qwen2.5-7B) have tiles of rows that begin and end inside a position, so that a tile
// holds rows of two chunks. Heads of 80 channels and blocks of 32 tokens take general kernels.
std::vector<Shape> shapes() {
  constexpr KvElement kE4m3 = KvElement::kE4m3;
  return {{},
          {.q_heads = 7, .kv_heads = 1, .head_dim = 128, .block_tokens = 256},
          {.q_heads = 10, .kv_heads = 2, .head_dim = 128, .block_tokens = 64},
          {.q_heads = 8, .kv_heads = 1, .head_dim = 128, .block_tokens = 128},
          {.q_heads = 4, .kv_heads = 2, .head_dim = 64, .block_tokens = 128},
          {.q_heads = 4, .kv_heads = 1, .head_dim = 256, .block_tokens = 128},
          {.q_heads = 7, .kv_heads = 1, .head_dim = 128, .block_tokens = 32},
          {.q_heads = 4, .kv_heads = 2, .head_dim = 80, .block_tokens = 64},
          {.q_heads = 7, .kv_heads = 1, .head_dim = 128, .block_tokens = 256, .element = kE4m3},
          {.q_heads = 4, .kv_heads = 2, .head_dim = 64, .block_tokens = 64, .element = kE4m3},
          {.q_heads = 4, .kv_heads = 2, .head_dim = 80, .block_tokens = 64, .element = kE4m3}};
}

// A model's sizes. Chunks of 256 tokens.
struct Chunks {
  int32_t chunk_tokens = 256;
  int32_t chunk_size = 320;
  int32_t factor_from = 300;
};

struct Problem {
  Shape shape;
  int32_t num_tokens;
  Chunks chunks;
  std::vector<BFloat16> qkv;  // [num_tokens, q heads, k heads, v heads, head_dim], not rotated
};

Problem random_problem(const Shape& shape, int32_t num_tokens, const Chunks& chunks) {
  return {shape, num_tokens, chunks, random_bf16(num_tokens * shape.width(), 7)};
}

// ---- The formula -------------------------------------------------------------------------------

std::vector<double> head_of(const Problem& problem, int32_t row, int32_t head) {
  const int32_t head_dim = problem.shape.head_dim;
  const auto begin = problem.qkv.begin() + row * problem.shape.width() + int64_t{head} * head_dim;
  std::vector<double> values;
  std::for_each(begin, begin + head_dim,
                [&](BFloat16 value) { values.push_back(static_cast<float>(value)); });
  return values;
}

std::vector<double> rotated(const std::vector<double>& x, double distance) {
  const size_t half = x.size() / 2;
  const double step = std::pow(kTheta, -1.0 / static_cast<double>(half));
  double frequency = 1.0;
  std::vector<double> result(x.size());
  for (size_t i = 0; i < half; ++i) {
    const double cosine = std::cos(distance * frequency);
    const double sine = std::sin(distance * frequency);
    result[i] = x[i] * cosine - x[i + half] * sine;
    result[i + half] = x[i + half] * cosine + x[i] * sine;
    frequency *= step;
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
  const Shape& shape = problem.shape;
  const int32_t kv_head = head / (shape.q_heads / shape.kv_heads);
  const std::vector<double> q = head_of(problem, p, head);
  std::vector<double> scores;
  for (int32_t j = 0; j <= p; ++j) {
    const std::vector<double> k = head_of(problem, j, shape.q_heads + kv_head);
    const std::vector<double> turned = rotated(q, distance_of(problem.chunks, p, j));
    scores.push_back(std::inner_product(k.begin(), k.end(), turned.begin(), 0.0) *
                     factor_of(problem.chunks, p) / std::sqrt(shape.head_dim));
  }
  const double largest = *std::ranges::max_element(scores);
  std::vector<double> out(static_cast<size_t>(shape.head_dim));
  double sum = 0;
  for (int32_t j = 0; j <= p; ++j) {
    const double weight = std::exp(scores[j] - largest);
    const std::vector<double> v = head_of(problem, j, shape.q_heads + shape.kv_heads + kv_head);
    sum += weight;
    for (int32_t d = 0; d < shape.head_dim; ++d) out[d] += weight * v[d];
  }
  for (double& value : out) value /= sum;
  return out;
}

// ---- The ops -----------------------------------------------------------------------------------

// Rows [first_row, num_tokens) attend to all tokens, in runs that end at `cuts` and at the end.
// Without zones: as models without chunks.
std::vector<BFloat16> run(const Problem& problem, int32_t first_row = 0,
                          std::vector<int32_t> cuts = {}, bool has_zones = true) {
  const Shape& shape = problem.shape;
  const int32_t half = shape.half();
  Machine machine;
  Stream& stream = machine.stream();
  const int32_t n = problem.num_tokens;
  const auto numbers = [&](int32_t count, int32_t first) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), first);
    return values;
  };
  std::vector<float> inv_freq;
  for (int32_t i = 0; i < half; ++i) {
    inv_freq.push_back(static_cast<float>(std::pow(kTheta, -2.0 * i / shape.head_dim)));
  }
  const TensorView frequencies = machine.tensor(inv_freq, {half});
  const TensorView positions = machine.tensor(numbers(n, 0), {n});
  const TensorView qkv = machine.tensor(problem.qkv, {n, shape.width()});
  const int32_t num_blocks = (n + shape.block_tokens - 1) / shape.block_tokens;
  KvBlocksView kv{.num_blocks = num_blocks,
                  .shape = {.num_kv_heads = shape.kv_heads,
                            .head_dim = shape.head_dim,
                            .block_tokens = shape.block_tokens,
                            .element = shape.element}};
  kv.stride_bytes = kv.shape.block_bytes();
  kv.base = machine.poisoned(kv.stride_bytes * static_cast<size_t>(num_blocks));
  const TensorView written = machine.tensor(numbers(n, 0), {n});
  const TensorView none = machine.tensor(std::vector<int32_t>(static_cast<size_t>(n), -1), {n});
  const auto rotate = [&](RopeZone zone, bool writes) {
    const bool is_scaled = zone != RopeZone::kKeys && zone != RopeZone::kPlain;
    const TensorView cos_sin = machine.tensor(DType::kF32, {n, 2, half});
    const TensorView q = machine.tensor(DType::kBF16, {n, shape.q_heads, shape.head_dim});
    rope_angles(stream, {.positions = positions,
                         .inv_freq = frequencies,
                         .chunks = {.zone = zone,
                                    .chunk_tokens = problem.chunks.chunk_tokens,
                                    .chunk_size = problem.chunks.chunk_size,
                                    .factor_from = is_scaled ? problem.chunks.factor_from : 0},
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
  const int32_t num_rows = n - first_row;
  const TensorView plain_q = rotate(has_zones ? RopeZone::kKeys : RopeZone::kPlain, true);
  AttentionArgs args{.q = plain_q,
                     .out = machine.tensor(DType::kBF16, {num_rows, shape.q_heads, shape.head_dim}),
                     .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                     .batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, num_rows}, {2}),
                               .first_pos = machine.tensor(std::vector<int32_t>{first_row}, {1}),
                               .max_rows = num_rows,
                               .max_kv_tokens = n},
                     .kv = kv};
  if (has_zones) {
    args.q = rotate(RopeZone::kOwn, false);
    args.zones = {.before = rotate(RopeZone::kBefore, false),
                  .far = rotate(RopeZone::kFar, false),
                  .chunk_tokens = problem.chunks.chunk_tokens};
    args.out = args.q;  // as in the decoder
  }
  args.state = {.acc = machine.tensor(DType::kF32, {num_rows, shape.q_heads, shape.head_dim}),
                .max = machine.tensor(DType::kF32, {num_rows, shape.q_heads}),
                .sum = machine.tensor(DType::kF32, {num_rows, shape.q_heads})};
  cuts.push_back(n);
  int32_t begin = 0;
  for (const int32_t end : cuts) {
    args.kv_begin = machine.tensor(std::vector<int32_t>{begin}, {1});
    args.kv_end = machine.tensor(std::vector<int32_t>{end}, {1});
    const int32_t first_block = begin / shape.block_tokens;
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

// How far the rows that `out` begins with `first_row` are from the formula, at and around borders.
double error_of(const Problem& problem, const std::vector<BFloat16>& out, int32_t first_row) {
  const Shape& shape = problem.shape;
  const int32_t c = problem.chunks.chunk_tokens;
  const int32_t n = problem.num_tokens;
  double error = 0;
  double power = 0;
  for (const int32_t p : {0, 5, c - 2, c - 1, c, c + 60, 2 * c - 1, 2 * c, n - 1}) {
    if (p >= n || p < first_row) continue;
    for (const int32_t head : {0, 1, shape.q_heads - 1}) {
      const std::vector<double> expected = attended(problem, p, head);
      const auto* got =
          out.data() + int64_t{(p - first_row) * shape.q_heads + head} * shape.head_dim;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        error += std::pow(static_cast<float>(got[d]) - expected[d], 2);
        power += expected[d] * expected[d];
      }
    }
  }
  return error / power;
}

// Rotated queries and keys are bf16, and so is the output; e4m3 has 3 bits after the point.
double tolerance_of(const Shape& shape) { return shape.element == KvElement::kE4m3 ? 5e-3 : 1e-4; }

// Around every border: the last rows of a chunk, the first of the next, and far past both.
TEST(DualChunkTest, MatchesTheFormula) {
  for (const Chunks& chunks : {Chunks{}, Chunks{.chunk_size = 260}, Chunks{.chunk_size = 511}}) {
    const int32_t c = chunks.chunk_tokens;
    for (const int32_t n : {c - 1, c, c + 1, 2 * c, 2 * c + 1, 3 * c + 7}) {
      SCOPED_TRACE(fmt::format("chunk {} tokens {}", chunks.chunk_size, n));
      const Problem problem = random_problem({}, n, chunks);
      EXPECT_LT(error_of(problem, run(problem), 0), tolerance_of({}));
    }
  }
}

// Prefill, and the last row alone, which has other kernels on CUDA.
TEST(DualChunkTest, MatchesTheFormulaInEveryShape) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : {257, 513, 3 * 256 + 7}) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      const Problem problem = random_problem(shape, n, {});
      EXPECT_LT(error_of(problem, run(problem), 0), tolerance_of(shape));
      EXPECT_LT(error_of(problem, run(problem, n - 1), n - 1), tolerance_of(shape));
    }
  }
}

TEST(DualChunkTest, CutsAndRowsChangeNoBit) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name());
    const int32_t n = 3 * 256 + 40;
    const Problem problem = random_problem(shape, n, {});
    const std::vector<uint16_t> whole = bits_of(run(problem));
    std::vector<int32_t> cuts = {64, 320, 512, 704};
    std::erase_if(cuts, [&](int32_t cut) { return cut % shape.block_tokens != 0; });
    EXPECT_EQ(bits_of(run(problem, 0, cuts)), whole);
    for (const int32_t first : {1, 250, 255, 256, 300, 511, 512, 700, 806}) {
      EXPECT_EQ(bits_of(run(problem, first, {256})),
                std::vector(whole.begin() + first * shape.row(), whole.end()))
          << "rows from " << first;
    }
    // A row alone has the bits of prefill on the CPU, and on every device its own, however it is
    // cut.
    const std::vector<uint16_t> last = bits_of(run(problem, n - 1));
    EXPECT_EQ(bits_of(run(problem, n - 1, cuts)), last);
    if (!testing_cpu()) continue;
    EXPECT_EQ(last, std::vector(whole.end() - shape.row(), whole.end()));
  }
}

// Where all queries are the same, zones change nothing.
TEST(DualChunkTest, TheFirstChunkHasTheBitsOfPlainAttention) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : {40, 255, 256}) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      const Problem problem = random_problem(shape, n, {});
      for (const int32_t first : {0, n - 3, n - 1}) {
        EXPECT_EQ(bits_of(run(problem, first)), bits_of(run(problem, first, {}, false)));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::testing
