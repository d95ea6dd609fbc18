// Sequences under dual chunk attention for the tests of ops with zones of keys: the formula in
// double precision, and a rig that makes the queries and the KV of a call.
//
// Used by tests/ops/zones. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/op_test_util.h"
#include "ops/rows/rope.h"
#include "support/sample_of.h"

namespace sluice::testing {

inline constexpr double kTheta = 10000.0;

// Each has another kernel on CUDA: by head size, by tokens of a block, and by what KV is.
struct Shape {
  int32_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  int32_t block_tokens = 64;
  KvElement element = KvElement::kBFloat16;

  int32_t half() const { return head_dim / 2; }
  int32_t group() const { return q_heads / kv_heads; }
  int64_t width() const { return int64_t{q_heads + 2 * kv_heads} * head_dim; }
  int64_t row() const { return int64_t{q_heads} * head_dim; }
  std::string name() const {
    return fmt::format("{} heads, {} of KV, {} channels, blocks of {}, {}", q_heads, kv_heads,
                       head_dim, block_tokens, element == KvElement::kE4m3 ? "e4m3" : "bf16");
  }
};

// Groups of 7 (Qwen2.5-7B) have tiles of rows that begin and end inside a position, so that a tile
// holds rows of two chunks. Heads of 80 channels and blocks of 32 tokens take general kernels.
// A sanitized build runs three or four.
inline std::vector<Shape> shapes() {
  constexpr KvElement kE4m3 = KvElement::kE4m3;
  const std::vector<Shape> all = {
      {},
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
  return sample_of(all, 3);
}

// Rotated queries and keys are bf16, and so is the output; e4m3 has 3 bits after the point.
inline double tolerance_of(const Shape& shape) {
  return shape.element == KvElement::kE4m3 ? 5e-3 : 1e-4;
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
  int32_t num_stored;  // the others are copies of these, in turn: all, or those of one chunk, whose
                       // keys are rotated alike in every chunk
  std::vector<BFloat16> qkv;  // [num_stored, q heads, k heads, v heads, head_dim], not rotated
};

inline Problem random_problem(const Shape& shape, int32_t num_tokens, const Chunks& chunks) {
  return {shape, num_tokens, chunks, num_tokens, random_bf16(num_tokens * shape.width(), 7)};
}

// A long sequence in the memory of a chunk.
inline Problem repeating_problem(const Shape& shape, int32_t num_tokens, const Chunks& chunks) {
  Problem problem = random_problem(shape, chunks.chunk_tokens, chunks);
  problem.num_tokens = num_tokens;
  return problem;
}

// ---- The formula -------------------------------------------------------------------------------

inline std::vector<double> head_of(const Problem& problem, int32_t row, int32_t head) {
  const int32_t head_dim = problem.shape.head_dim;
  const auto begin = problem.qkv.begin() + row % problem.num_stored * problem.shape.width() +
                     int64_t{head} * head_dim;
  std::vector<double> values;
  std::for_each(begin, begin + head_dim,
                [&](BFloat16 value) { values.push_back(static_cast<float>(value)); });
  return values;
}

inline std::vector<double> rotated(const std::vector<double>& x, double distance) {
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

// The position at which the query of row p is rotated for key j.
inline double query_position(const Chunks& chunks, int32_t p, int32_t j) {
  const int32_t c = chunks.chunk_tokens;
  const int32_t apart = p / c - j / c;
  if (apart == 1) return std::min(p % c + c, chunks.chunk_size);
  return apart > 1 ? std::min(2 * c - 1, chunks.chunk_size) : p % c;
}

inline double factor_of(const Chunks& chunks, int32_t p) {
  const double f =
      std::max(1.0, 1.0 + 0.1 * std::log((p + 1.0) / static_cast<double>(chunks.factor_from)));
  return f * f;
}

// The tokens that a row sees.
inline std::vector<int32_t> tokens_before(int32_t end) {
  std::vector<int32_t> tokens(static_cast<size_t>(end));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// The output of one row and query head that attends to `tokens`: every query rotated for its
// distance to every key, which is not rotated at all.
inline std::vector<double> attended(const Problem& problem, int32_t p, int32_t head,
                                    const std::vector<int32_t>& tokens) {
  const Shape& shape = problem.shape;
  const int32_t kv_head = head / shape.group();
  const std::vector<double> q = head_of(problem, p, head);
  std::vector<double> scores;
  for (const int32_t j : tokens) {
    const std::vector<double> k = head_of(problem, j, shape.q_heads + kv_head);
    const double distance = query_position(problem.chunks, p, j) - j % problem.chunks.chunk_tokens;
    const std::vector<double> turned = rotated(q, distance);
    scores.push_back(std::inner_product(k.begin(), k.end(), turned.begin(), 0.0) *
                     factor_of(problem.chunks, p) / std::sqrt(shape.head_dim));
  }
  const double largest = *std::ranges::max_element(scores);
  std::vector<double> out(static_cast<size_t>(shape.head_dim));
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    const std::vector<double> v =
        head_of(problem, tokens[i], shape.q_heads + shape.kv_heads + kv_head);
    sum += weight;
    for (int32_t d = 0; d < shape.head_dim; ++d) out[d] += weight * v[d];
  }
  for (double& value : out) value /= sum;
  return out;
}

// How far numbers are from those of the formula.
struct ErrorSum {
  double error = 0;
  double power = 0;

  void add(const BFloat16* got, const std::vector<double>& expected) {
    for (size_t d = 0; d < expected.size(); ++d) {
      error += std::pow(static_cast<float>(got[d]) - expected[d], 2);
      power += expected[d] * expected[d];
    }
  }
  double relative() const { return error / power; }
};

inline std::vector<uint16_t> bits_of(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> bits;
  for (const BFloat16 value : values) bits.push_back(value.bits);
  return bits;
}

// ---- The ops -----------------------------------------------------------------------------------

// KV of all tokens, and queries of rows [first_row, num_tokens). Without zones: as models without
// chunks.
class ZoneRig {
 public:
  explicit ZoneRig(const Problem& problem, int32_t first_row = 0, bool has_zones = true)
      : problem_(problem), first_row_(first_row) {
    make_kv(has_zones ? RopeZone::kKeys : RopeZone::kPlain);
    make_args();
    args_.q = queries(has_zones ? RopeZone::kOwn : RopeZone::kPlain);
    if (!has_zones) return;
    args_.zones = {.before = queries(RopeZone::kBefore),
                   .far = queries(RopeZone::kFar),
                   .chunk_tokens = problem.chunks.chunk_tokens};
    args_.out = args_.q;  // as in the decoder
  }

  Machine& machine() { return machine_; }
  // The call over tokens [begin, end); `out` is that of all calls, and so is the state.
  AttentionArgs call(int32_t begin, int32_t end) {
    AttentionArgs args = args_;
    args.kv_begin = machine_.tensor(std::vector<int32_t>{begin}, {1});
    args.kv_end = machine_.tensor(std::vector<int32_t>{end}, {1});
    std::vector<int32_t> table;
    for (int32_t token = begin; token < problem_.num_tokens; token += args.kv.shape.block_tokens) {
      table.push_back(token % problem_.num_stored / args.kv.shape.block_tokens);
    }
    args.block_table = machine_.tensor(table, {1, static_cast<int64_t>(table.size())});
    // A run has no more blocks than there are: of a sequence that repeats, each counts as often.
    args.kv.num_blocks = std::max(args.kv.num_blocks, static_cast<int32_t>(table.size()));
    args.first = begin == 0;
    args.last = end == problem_.num_tokens;
    return args;
  }

 private:
  TensorView numbers(int32_t first, int32_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), first);
    return machine_.tensor(values, {count});
  }

  TensorView angles(const TensorView& positions, RopeZone zone) {
    const bool is_query = zone != RopeZone::kKeys && zone != RopeZone::kPlain;
    const int32_t half = problem_.shape.half();
    std::vector<float> inv_freq;
    for (int32_t i = 0; i < half; ++i) {
      inv_freq.push_back(static_cast<float>(std::pow(kTheta, -2.0 * i / problem_.shape.head_dim)));
    }
    const TensorView cos_sin = machine_.tensor(DType::kF32, {positions.dim(0), 2, half});
    rope_angles(machine_.stream(),
                {.positions = positions,
                 .inv_freq = machine_.tensor(inv_freq, {half}),
                 .chunks = {.zone = zone,
                            .chunk_tokens = problem_.chunks.chunk_tokens,
                            .chunk_size = problem_.chunks.chunk_size,
                            .factor_from = is_query ? problem_.chunks.factor_from : 0},
                 .cos_sin = cos_sin});
    return cos_sin;
  }

  // Queries of the rows of `qkv` with these angles; their keys and values go to kv_rows.
  TensorView rotate(const TensorView& qkv, const TensorView& cos_sin, const TensorView& kv_rows) {
    const Shape& shape = problem_.shape;
    const TensorView q = machine_.tensor(DType::kBF16, {qkv.dim(0), shape.q_heads, shape.head_dim});
    rope_and_write_kv(machine_.stream(), {.qkv = qkv,
                                          .q_norm = {},
                                          .k_norm = {},
                                          .cos_sin = cos_sin,
                                          .q_out = q,
                                          .kv = args_.kv,
                                          .kv_rows = kv_rows});
    return q;
  }

  void make_kv(RopeZone zone) {
    const Shape& shape = problem_.shape;
    const int32_t stored = problem_.num_stored;
    args_.kv = {.num_blocks = (stored + shape.block_tokens - 1) / shape.block_tokens,
                .shape = {.num_kv_heads = shape.kv_heads,
                          .head_dim = shape.head_dim,
                          .block_tokens = shape.block_tokens,
                          .element = shape.element}};
    args_.kv.stride_bytes = args_.kv.shape.block_bytes();
    args_.kv.base =
        machine_.poisoned(args_.kv.stride_bytes * static_cast<size_t>(args_.kv.num_blocks));
    qkv_ = machine_.tensor(problem_.qkv, {stored, shape.width()});
    const TensorView positions = numbers(0, stored);
    rotate(qkv_, angles(positions, zone), positions);
  }

  void make_args() {
    const Shape& shape = problem_.shape;
    const int32_t num_rows = problem_.num_tokens - first_row_;
    args_.out = machine_.tensor(DType::kBF16, {num_rows, shape.q_heads, shape.head_dim});
    args_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args_.batch = {.row_begin = machine_.tensor(std::vector<int32_t>{0, num_rows}, {2}),
                   .first_pos = machine_.tensor(std::vector<int32_t>{first_row_}, {1}),
                   .max_rows = num_rows,
                   .max_kv_tokens = problem_.num_tokens};
    args_.state = {.acc = machine_.tensor(DType::kF32, {num_rows, shape.q_heads, shape.head_dim}),
                   .max = machine_.tensor(DType::kF32, {num_rows, shape.q_heads}),
                   .sum = machine_.tensor(DType::kF32, {num_rows, shape.q_heads})};
  }

  TensorView queries(RopeZone zone) {
    const int32_t num_rows = problem_.num_tokens - first_row_;
    const TensorView none =
        machine_.tensor(std::vector<int32_t>(static_cast<size_t>(num_rows), -1), {num_rows});
    return rotate(qkv_.rows(first_row_ % problem_.num_stored, num_rows),
                  angles(numbers(first_row_, num_rows), zone), none);
  }

  Machine machine_;
  const Problem& problem_;
  int32_t first_row_;
  TensorView qkv_;
  AttentionArgs args_;
};

}  // namespace sluice::testing
