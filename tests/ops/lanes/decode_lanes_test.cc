// The windows of decode attention, computed by the sources of the CUDA kernels on lanes of a CPU
// (lanes.h).
//
// Double precision reveals a wrong address, token or head; KV in codes against the numbers that it
// stands for, and one kernel against another, other bits than the ones that a GPU promises. What
// only a GPU has, its rounding, its speed and races inside an instruction, is left to
// attention_test and fp8_kv_test on one.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "ops/cuda/attention/decode/kernels.h"
#include "ops/cuda/attention/decode/window.cuh"
#include "ops/rounded_blocks.h"

namespace sluice::cuda {
namespace {

using testing::as_bf16;
using testing::blocks_like;
using testing::for_each_token;
using testing::Machine;
using testing::put_row;
using testing::random_bf16;

constexpr int32_t kBlockTokens = 512;
constexpr int32_t kNumKvHeads = 2;

std::vector<uint16_t> random_row(int64_t count, uint32_t seed) {
  std::vector<uint16_t> row;
  for (const BFloat16 value : random_bf16(count, seed)) row.push_back(value.bits);
  return row;
}

// Random keys and values, rounded to the element of the shape.
KvBlocksView random_blocks(Machine& machine, int32_t num_blocks, const KvBlockShape& shape,
                           uint32_t seed) {
  const KvBlocksView kv = blocks_like(machine, {.num_blocks = num_blocks, .shape = shape},
                                      shape.element, shape.keys_in_bf16);
  for_each_token(kv, [&](int32_t block, int32_t head, int32_t token) {
    const auto put = [&](const KvHalf& half, std::byte* to) {
      put_row(half, random_row(shape.head_dim, ++seed).data(), to, token);
    };
    put(shape.keys(), kv.keys<std::byte>(block, head));
    put(shape.values(), kv.values<std::byte>(block, head));
  });
  return kv;
}

// One row at the end of a run of `num_tokens`, and the windows that a kernel computes for it.
class Row {
 public:
  Row(const KvBlocksView& kv, int32_t num_tokens, int32_t group)
      : kv_(kv),
        num_tokens_(num_tokens),
        group_(group),
        queries_(random_row(int64_t{num_heads()} * kv.shape.head_dim + 8, 99)),
        table_(static_cast<size_t>(kv.num_blocks)) {
    for (int32_t i = 0; i < kv.num_blocks; ++i) {
      table_[static_cast<size_t>(i)] = kv.num_blocks - 1 - i;  // in another order
    }
  }

  int32_t num_heads() const { return group_ * kNumKvHeads; }

  // The parts of a window that a kernel writes: (max, sum) and acc of each head.
  struct Windows {
    std::vector<float2> max_sums;  // [head][window][record]
    std::vector<float> accs;       // the same, [head_dim]
    bool operator==(const Windows& other) const {
      return accs == other.accs &&
             std::ranges::equal(max_sums, other.max_sums,
                                [](float2 a, float2 b) { return a.x == b.x && a.y == b.y; });
    }
  };

  using Launch = void (*)(CudaStream& stream, const DecodeParams& p);
  Windows compute(Launch launch, int32_t window_tokens = kMaxWindowTokens,
                  int32_t records = 1) const {
    const KvBlockShape& shape = kv_.shape;
    const int32_t num_windows = (num_tokens_ + window_tokens - 1) / window_tokens;
    const auto count = static_cast<size_t>(num_heads() * num_windows * records);
    Windows windows{.max_sums = std::vector(count, nothing_visible()),
                    .accs = std::vector<float>(count * static_cast<size_t>(shape.head_dim))};
    const std::vector<int32_t> begins = {0, 1};
    const int32_t position = num_tokens_ - 1;
    const int32_t kv_begin = 0;
    DecodeParams p;
    p.q = queries();
    p.row_begin = begins.data();
    p.first_pos = &position;
    p.kv_begin = &kv_begin;
    p.kv_end = &num_tokens_;
    p.block_table = table_.data();
    p.kv_base = kv_.base;
    p.kv_stride_bytes = static_cast<int64_t>(kv_.stride_bytes);
    p.max_blocks = kv_.num_blocks;
    p.block_tokens = shape.block_tokens;
    p.partial_acc = windows.accs.data();
    p.partial_max_sum = windows.max_sums.data();
    p.records = records;
    p.num_q_heads = num_heads();
    p.num_kv_heads = kNumKvHeads;
    p.group = group_;
    p.head_dim = shape.head_dim;
    p.window_tokens = window_tokens;
    p.window_shift = std::countr_zero(static_cast<uint32_t>(window_tokens));
    p.windows_per_block = shape.block_tokens / window_tokens;
    p.num_seqs = 1;
    p.num_windows = num_windows;
    p.scale = scale();
    p.codes = kv_codes(shape);
    if (p.codes != KvCodes::kNone) p.codec = kv_codec(shape.element);
    CudaStream stream;
    launch(stream, p);
    return windows;
  }

  // The windows of a head added up, and the same in double precision; [channel].
  std::vector<double> sum_of(const Windows& windows, int32_t head) const {
    const auto head_dim = static_cast<size_t>(kv_.shape.head_dim);
    const size_t count = windows.max_sums.size() / static_cast<size_t>(num_heads());
    std::vector<double> out(head_dim);
    double sum = 0;
    for (size_t i = static_cast<size_t>(head) * count; i < (static_cast<size_t>(head) + 1) * count;
         ++i) {
      const float2 own = windows.max_sums[i];
      if (shows_nothing(own)) continue;
      const double weight = std::exp(static_cast<double>(own.x));
      sum += own.y * weight;
      for (size_t c = 0; c < head_dim; ++c) out[c] += windows.accs[i * head_dim + c] * weight;
    }
    for (double& channel : out) channel /= sum;
    return out;
  }
  std::vector<double> expected(int32_t head) const {
    const auto head_dim = static_cast<size_t>(kv_.shape.head_dim);
    const uint16_t* query = queries() + static_cast<size_t>(head) * head_dim;
    std::vector<BFloat16> row(head_dim);
    std::vector<double> out(head_dim);
    double sum = 0;
    for (int32_t i = 0; i < num_tokens_; ++i) {
      const int32_t block = table_[static_cast<size_t>(i / kBlockTokens)];
      copy_key(kv_, block, head / group_, i % kBlockTokens, row);
      double score = 0;
      for (size_t c = 0; c < head_dim; ++c) {
        score += static_cast<double>(static_cast<float>(row[c])) *
                 static_cast<float>(BFloat16::from_bits(query[c]));
      }
      const double weight = std::exp(score * scale());
      sum += weight;
      copy_value(kv_, block, head / group_, i % kBlockTokens, row);
      for (size_t c = 0; c < head_dim; ++c) out[c] += weight * static_cast<float>(row[c]);
    }
    for (double& channel : out) channel /= sum;
    return out;
  }

 private:
  float scale() const { return 1 / std::sqrt(static_cast<float>(kv_.shape.head_dim)); }
  const uint16_t* queries() const {  // at a multiple of 16 bytes
    const auto address = reinterpret_cast<uintptr_t>(queries_.data());
    return queries_.data() + (16 - address % 16) % 16 / sizeof(uint16_t);
  }

  KvBlocksView kv_;
  int32_t num_tokens_;
  int32_t group_;
  std::vector<uint16_t> queries_;
  std::vector<int32_t> table_;
};

KvBlockShape shape_of(int32_t head_dim, KvElement element, bool keys_in_bf16 = false) {
  return {.num_kv_heads = kNumKvHeads,
          .head_dim = head_dim,
          .block_tokens = kBlockTokens,
          .element = element,
          .keys_in_bf16 = keys_in_bf16};
}

std::vector<KvBlockShape> shapes_of(int32_t head_dim) {
  return {shape_of(head_dim, KvElement::kBFloat16), shape_of(head_dim, KvElement::kE4m3),
          shape_of(head_dim, KvElement::kInt8), shape_of(head_dim, KvElement::kE4m3, true)};
}

// Weights are bf16, so an output is off by some 2^-9 of values of about 1.
TEST(DecodeLanes, MatchDoublePrecision) {
  Machine machine(1);
  for (const auto& [head_dim, group, num_tokens] :
       {std::tuple{128, 4, 700}, {64, 3, 530}, {256, 2, 270}, {128, 10, 140}, {64, 12, 5}}) {
    for (const KvBlockShape& shape : shapes_of(head_dim)) {
      const KvBlocksView blocks = random_blocks(machine, 2, shape, 7);
      const Row row(blocks, num_tokens, group);
      const Row::Windows windows = row.compute(launch_decode_windows);
      for (int32_t head = 0; head < row.num_heads(); ++head) {
        const std::vector<double> got = row.sum_of(windows, head);
        const std::vector<double> expected = row.expected(head);
        for (size_t c = 0; c < got.size(); ++c) {
          ASSERT_NEAR(got[c], expected[c], 0.01)
              << kv_block_element_name(shape) << " " << head_dim << " head " << head << " " << c;
        }
      }
    }
  }
}

// At the ends of halves and of windows.
TEST(DecodeLanes, CodesHaveTheBitsOfWhatTheyStandFor) {
  Machine machine(1);
  for (const auto& [head_dim, group, num_tokens] :
       {std::tuple{128, 4, 700}, {64, 8, 384}, {128, 8, 257}, {256, 3, 300}, {64, 11, 129}}) {
    for (const KvBlockShape& shape : shapes_of(head_dim)) {
      const KvBlocksView blocks = random_blocks(machine, 2, shape, 11);
      const KvBlocksView plain = as_bf16(machine, blocks);
      const Row coded(blocks, num_tokens, group);
      const Row bf16(plain, num_tokens, group);
      EXPECT_TRUE(coded.compute(launch_decode_windows) == bf16.compute(launch_decode_windows))
          << kv_block_element_name(shape) << ", head_dim " << head_dim << ", " << num_tokens;
    }
  }
}

TEST(DecodeLanes, WavesHaveTheBitsOfBlocks) {
  Machine machine(1);
  for (const auto& [head_dim, group, num_tokens] :
       {std::tuple{128, 4, 1000}, {64, 8, 532}, {128, 1, 5}}) {
    const KvBlocksView blocks =
        random_blocks(machine, 2, shape_of(head_dim, KvElement::kBFloat16), 13);
    const Row row(blocks, num_tokens, group);
    EXPECT_TRUE(row.compute(launch_decode_wave) == row.compute(launch_decode_windows)) << head_dim;
  }
}

// Halves that are records of their own are added up as those that one block computes.
TEST(DecodeLanes, RecordsHaveTheBitsOfWindows) {
  Machine machine(1);
  for (const KvBlockShape& shape : shapes_of(128)) {
    const KvBlocksView blocks = random_blocks(machine, 2, shape, 17);
    const Row row(blocks, 600, 4);
    const Row::Windows whole = row.compute(launch_decode_windows);
    const Row::Windows halves = row.compute(launch_decode_windows, kMaxWindowTokens, 2);
    for (size_t i = 0; i < whole.max_sums.size(); ++i) {
      HalfWeights weights;
      const float2 sum = sum_of_halves(halves.max_sums[2 * i], halves.max_sums[2 * i + 1], weights);
      ASSERT_EQ(whole.max_sums[i].x, sum.x) << kv_block_element_name(shape);
      ASSERT_EQ(whole.max_sums[i].y, sum.y) << kv_block_element_name(shape);
      for (size_t c = 0; c < 128; ++c) {
        ASSERT_EQ(whole.accs[i * 128 + c],
                  sum_of_halves(halves.accs[2 * i * 128 + c], halves.accs[(2 * i + 1) * 128 + c],
                                weights));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::cuda
