// Bounds of keys, and scores from bounds: against the definitions in double precision, and the
// properties that policies rely on (a page's score bounds the scores of its keys). Lists from
// scores are in select_pages_test.cc.
#include "ops/pages/page_selection.h"

#include <limits>
#include <numeric>

#include "op_test_util.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/reference/page_selection.h"

namespace sluice::testing {
namespace {

struct CacheShape {
  int32_t head_dim = 64;
  int32_t num_kv_heads = 2;
  int32_t block_tokens = 64;
  int32_t page_tokens = 32;
  std::vector<int32_t> num_tokens = {150, 1, 64, 33};
  uint32_t seed = 1;
};

// Sequences with random keys in shuffled blocks. Memory without a token is NaN.
class Cache {
 public:
  Cache(Machine& machine, const CacheShape& shape) : machine_(machine), shape_(shape) {
    const auto num_seqs = static_cast<int64_t>(shape.num_tokens.size());
    const int32_t longest = *std::max_element(shape.num_tokens.begin(), shape.num_tokens.end());
    width_ = (longest + shape.block_tokens - 1) / shape.block_tokens;
    const auto num_entries = static_cast<size_t>(num_seqs * width_);
    table_ = shuffled(num_entries, shape.seed);
    ids_ = shuffled(num_entries, shape.seed + 1);
    kv_.shape = {.num_kv_heads = shape.num_kv_heads,
                 .head_dim = shape.head_dim,
                 .block_tokens = shape.block_tokens};
    kv_.num_blocks = static_cast<int32_t>(num_entries);
    kv_.stride_bytes = kv_.shape.block_bytes() + 64;
    kv_.base = machine.poisoned(num_entries * kv_.stride_bytes);
    for (size_t seq = 0; seq < shape.num_tokens.size(); ++seq) {
      keys_.push_back(
          random_bf16(int64_t{shape.num_tokens[seq]} * shape.num_kv_heads * shape.head_dim,
                      shape.seed + 10 + static_cast<uint32_t>(seq)));
      for (int32_t token = 0; token < shape.num_tokens[seq]; ++token) write(seq, token);
    }
    block_ids_ = machine.tensor(ids_, {num_seqs, width_});
    bounds_ = new_bounds();
  }

  const CacheShape& shape() const { return shape_; }
  KeyBounds& bounds() { return bounds_; }
  std::vector<int32_t>& ids() { return ids_; }
  TensorView block_ids() const { return block_ids_; }
  int64_t num_seqs() const { return static_cast<int64_t>(shape_.num_tokens.size()); }
  int64_t max_pages() const { return width_ * (shape_.block_tokens / shape_.page_tokens); }

  const BFloat16* key(size_t seq, int32_t token, int32_t head) const {
    return keys_[seq].data() + (int64_t{token} * shape_.num_kv_heads + head) * shape_.head_dim;
  }
  void set_key(size_t seq, int32_t token, int32_t head, int32_t channel, BFloat16 value) {
    keys_[seq][static_cast<size_t>((int64_t{token} * shape_.num_kv_heads + head) * shape_.head_dim +
                                   channel)] = value;
    write(seq, token);
  }

  KeyBounds new_bounds() const {
    return {.minmax = machine_.tensor(DType::kBF16, {static_cast<int64_t>(ids_.size()),
                                                     shape_.block_tokens / shape_.page_tokens,
                                                     shape_.num_kv_heads, 2, shape_.head_dim}),
            .page_tokens = shape_.page_tokens};
  }

  // The call for rows [begin[s], end[s]) of each sequence; the block table starts at the block of
  // begin[s].
  UpdateKeyBoundsArgs update(const std::vector<int32_t>& begin,
                             const std::vector<int32_t>& end) const {
    std::vector<int32_t> row_begin = {0};
    std::vector<int32_t> kv_begin;
    std::vector<int32_t> table(table_.size(), -1);
    UpdateKeyBoundsArgs args;
    for (size_t s = 0; s < begin.size(); ++s) {
      row_begin.push_back(row_begin.back() + end[s] - begin[s]);
      args.batch.max_rows = std::max(args.batch.max_rows, end[s] - begin[s]);
      const int32_t first_block = begin[s] / shape_.block_tokens;
      kv_begin.push_back(first_block * shape_.block_tokens);
      const auto row = static_cast<int64_t>(s) * width_;
      std::copy(table_.begin() + row + first_block, table_.begin() + row + width_,
                table.begin() + row);
    }
    args.batch.row_begin = machine_.tensor(row_begin, {num_seqs() + 1});
    args.batch.first_pos = machine_.tensor(begin, {num_seqs()});
    args.kv = kv_;
    args.kv_begin = machine_.tensor(kv_begin, {num_seqs()});
    args.block_table = machine_.tensor(table, {num_seqs(), width_});
    args.block_ids = block_ids_;
    args.bounds = bounds_;
    return args;
  }
  UpdateKeyBoundsArgs update_all() const {
    return update(std::vector<int32_t>(shape_.num_tokens.size(), 0), shape_.num_tokens);
  }

  // Scores of one random query row per sequence.
  ScorePagesArgs score(int32_t group, uint32_t seed) const {
    std::vector<int32_t> rows(shape_.num_tokens.size() + 1);
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<int32_t> first_pos;
    for (int32_t tokens : shape_.num_tokens) first_pos.push_back(tokens - 1);
    const int64_t num_q_heads = int64_t{shape_.num_kv_heads} * group;
    ScorePagesArgs args;
    args.q = machine_.tensor(random_bf16(num_seqs() * num_q_heads * shape_.head_dim, seed, 1.5f),
                             {num_seqs(), num_q_heads, shape_.head_dim});
    args.batch = {.row_begin = machine_.tensor(rows, {num_seqs() + 1}),
                  .first_pos = machine_.tensor(first_pos, {num_seqs()}),
                  .max_rows = 1};
    args.bounds = bounds_;
    args.block_ids = block_ids_;
    args.kv_end = machine_.tensor(shape_.num_tokens, {num_seqs()});
    args.scores = machine_.tensor(DType::kF32, {num_seqs(), shape_.num_kv_heads, max_pages()});
    return args;
  }

 private:
  static std::vector<int32_t> shuffled(size_t count, uint32_t seed) {
    std::vector<int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    return order;
  }

  void write(size_t seq, int32_t token) {
    const int32_t block = table_[seq * static_cast<size_t>(width_) +
                                 static_cast<size_t>(token / shape_.block_tokens)];
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      std::copy_n(key(seq, token, head), shape_.head_dim,
                  kv_.keys<BFloat16>(block, head, token % shape_.block_tokens));
    }
  }

  Machine& machine_;
  CacheShape shape_;
  int64_t width_ = 0;  // of the tables
  KvBlocksView kv_;
  std::vector<int32_t> table_;
  std::vector<int32_t> ids_;
  std::vector<std::vector<BFloat16>> keys_;  // per sequence [token][kv_head][head_dim]
  TensorView block_ids_;
  KeyBounds bounds_;
};

// Expects equal numbers, ignoring the sign of zeros. NaN marks elements that must not be written.
void expect_exact(const TensorView& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.num_elements(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = element(actual, static_cast<int64_t>(i));
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(value)) << "element " << i << " became " << value;
    } else {
      ASSERT_EQ(value, expected[i]) << "element " << i;
    }
  }
}

void expect_bounds(Machine& machine, const UpdateKeyBoundsArgs& args) {
  const std::vector<double> expected = reference::key_bounds(args);
  update_key_bounds(machine.stream(), args);
  machine.synchronize();
  expect_exact(args.bounds.minmax, expected);
}

TEST(KeyBoundsTest, AreTheExtremesOfThePageOverTheGrid) {
  for (const int32_t head_dim : {16, 48, 64, 128, 256}) {
    for (const int32_t num_kv_heads : {1, 3}) {
      for (const auto& [block_tokens, page_tokens] : {std::pair(16, 16), {64, 16}, {128, 64}}) {
        SCOPED_TRACE(fmt::format("{} x {}, pages {}", num_kv_heads, head_dim, page_tokens));
        Machine machine;
        Cache cache(machine, {.head_dim = head_dim,
                              .num_kv_heads = num_kv_heads,
                              .block_tokens = block_tokens,
                              .page_tokens = page_tokens});
        expect_bounds(machine, cache.update_all());
      }
    }
  }
}

TEST(KeyBoundsTest, OnlyPagesWithRowsOfTheBatchAreTouched) {
  Machine machine;
  Cache cache(machine, {});
  // From the middle of a page to the middle of another; one token; no row at all; all.
  expect_bounds(machine, cache.update({70, 0, 64, 0}, {100, 1, 64, 33}));
}

TEST(KeyBoundsTest, ABlockWithoutAnIdIsLeftOut) {
  Machine machine;
  Cache cache(machine, {});
  cache.ids()[1] = -1;
  UpdateKeyBoundsArgs args = cache.update_all();
  args.block_ids = machine.tensor(cache.ids(), {cache.num_seqs(), cache.block_ids().dim(1)});
  expect_bounds(machine, args);
}

TEST(KeyBoundsTest, ChunksAndStepsLeaveNoTrace) {
  for (const int32_t page_tokens : {16, 64}) {
    Machine machine;
    Cache cache(machine, {.block_tokens = 64, .page_tokens = page_tokens});
    update_key_bounds(machine.stream(), cache.update_all());
    machine.synchronize();
    const std::vector<std::byte> whole = bytes_of(cache.bounds().minmax);
    for (const int32_t chunk : {1, 7, 64, 100}) {
      SCOPED_TRACE(fmt::format("pages {} chunks {}", page_tokens, chunk));
      cache.bounds() = cache.new_bounds();
      std::vector<int32_t> done(cache.shape().num_tokens.size(), 0);
      while (done != cache.shape().num_tokens) {
        std::vector<int32_t> next;
        for (size_t s = 0; s < done.size(); ++s) {
          next.push_back(std::min(done[s] + chunk, cache.shape().num_tokens[s]));
        }
        update_key_bounds(machine.stream(), cache.update(done, next));
        machine.synchronize();
        done = next;
      }
      EXPECT_TRUE(bytes_of(cache.bounds().minmax) == whole);
    }
  }
}

// Layer `layer` of a copy of the cache: every key with another bit changed.
void write_layer(const KvBlocksView& kv, int layer, size_t num_bytes, std::byte* to) {
  const auto* from = reinterpret_cast<const uint16_t*>(kv.base);
  auto* keys = reinterpret_cast<uint16_t*>(to + static_cast<size_t>(layer) * num_bytes);
  const uint16_t changes[] = {0, 0x8000, 0x0040};
  for (size_t i = 0; i < num_bytes / 2; ++i) keys[i] = from[i] ^ changes[layer];
}

TEST(KeyBoundsTest, ACallForLayersIsACallForEach) {
  constexpr int kLayers = 3;
  Machine machine;
  Cache cache(machine, {});
  UpdateKeyBoundsArgs args = cache.update({150, 0, 64, 20}, {150, 1, 64, 33});
  const size_t num_bytes = static_cast<size_t>(args.kv.num_blocks) * args.kv.stride_bytes;
  std::byte* layers = machine.poisoned(kLayers * num_bytes);
  std::vector<std::byte> of_each;
  for (int layer = 0; layer < kLayers; ++layer) {
    write_layer(args.kv, layer, num_bytes, layers);
    UpdateKeyBoundsArgs one = args;
    one.kv.base = layers + static_cast<size_t>(layer) * num_bytes;
    one.bounds = cache.new_bounds();
    update_key_bounds(machine.stream(), one);
    machine.synchronize();
    const std::vector<std::byte> bytes = bytes_of(one.bounds.minmax);
    of_each.insert(of_each.end(), bytes.begin(), bytes.end());
  }
  args.kv.base = layers;
  args.num_layers = kLayers;
  args.layer_stride_bytes = static_cast<int64_t>(num_bytes);
  const TensorView& minmax = args.bounds.minmax;
  args.bounds.minmax = machine.tensor(
      DType::kBF16, {kLayers * minmax.dim(0), minmax.dim(1), minmax.dim(2), 2, minmax.dim(4)});
  update_key_bounds(machine.stream(), args);
  machine.synchronize();
  EXPECT_TRUE(bytes_of(args.bounds.minmax) == of_each);
}

TEST(KeyBoundsTest, ZerosInfinitiesAndDenormalsAreOrdered) {
  Machine machine;
  Cache cache(machine, {.head_dim = 16, .num_kv_heads = 1, .num_tokens = {40}});
  const std::vector<uint16_t> odd = {0x0000, 0x8000, 0x7f80, 0xff80, 0x0001, 0x8001, 0x7f7f};
  for (int32_t channel = 0; channel < 16; ++channel) {
    for (int32_t token = 0; token < 40; ++token) {
      const size_t pick = static_cast<size_t>(token + channel) % (odd.size() - channel % 5);
      cache.set_key(0, token, 0, channel, BFloat16::from_bits(odd[pick]));
    }
  }
  expect_bounds(machine, cache.update_all());
}

// Error bound of f32 sums of head_dim terms in any order, each a product with one rounding.
std::vector<double> score_bounds(const ScorePagesArgs& args, const std::vector<double>& magnitude) {
  std::vector<double> bound;
  const auto head_dim = static_cast<double>(args.q.dim(2));
  for (double m : magnitude) bound.push_back((head_dim + 1.0) * kUnitF32 * m * 1.01);
  return bound;
}

TEST(ScorePagesTest, MatchTheReferenceOverTheGrid) {
  for (const int32_t head_dim : {16, 48, 64, 128, 256}) {
    for (const int32_t group : {1, 2, 7}) {
      for (const int32_t page_tokens : {16, 64}) {
        SCOPED_TRACE(fmt::format("head_dim {} group {} pages {}", head_dim, group, page_tokens));
        Machine machine;
        Cache cache(machine,
                    {.head_dim = head_dim, .page_tokens = page_tokens, .num_tokens = {700, 1, 65}});
        update_key_bounds(machine.stream(), cache.update_all());
        const ScorePagesArgs args = cache.score(group, 77);
        score_pages(machine.stream(), args);
        machine.synchronize();
        std::vector<double> magnitude;
        const std::vector<double> expected = reference::page_scores(args, &magnitude);
        expect_close(args.scores, expected, score_bounds(args, magnitude), 1e-12);
      }
    }
  }
}

// Rows of the third, the first and the second chunk, each with other queries for every zone.
// Borders lie inside the 16 pages that a warp of a GPU scores, and between them.
TEST(ScorePagesTest, ZonesMatchTheReferenceOverTheGrid) {
  for (const int32_t head_dim : {16, 48, 64, 128, 256}) {
    for (const int32_t group : {1, 7, 9}) {
      for (const auto& [page_tokens, chunk_tokens] : {std::pair(16, 256), {32, 256}, {16, 192}}) {
        SCOPED_TRACE(fmt::format("head_dim {} group {} pages {}", head_dim, group, page_tokens));
        Machine machine;
        Cache cache(machine, {.head_dim = head_dim,
                              .page_tokens = page_tokens,
                              .num_tokens = {700, chunk_tokens, chunk_tokens + 1}});
        update_key_bounds(machine.stream(), cache.update_all());
        ScorePagesArgs args = cache.score(group, 77);
        args.zones = {.before = cache.score(group, 78).q,
                      .far = cache.score(group, 79).q,
                      .chunk_tokens = chunk_tokens};
        score_pages(machine.stream(), args);
        machine.synchronize();
        std::vector<double> magnitude;
        const std::vector<double> expected = reference::page_scores(args, &magnitude);
        expect_close(args.scores, expected, score_bounds(args, magnitude), 1e-12);
      }
    }
  }
}

double dot(const BFloat16* a, const BFloat16* b, int32_t n) {
  double sum = 0.0;
  for (int32_t d = 0; d < n; ++d) {
    sum += static_cast<double>(static_cast<float>(a[d])) * static_cast<float>(b[d]);
  }
  return sum;
}

// The property that page selection relies on: no key of a page scores higher than the page.
TEST(ScorePagesTest, AreUpperBoundsOfEveryKeysScore) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    constexpr int32_t kGroup = 2;
    Machine machine;
    Cache cache(machine, {.head_dim = 128, .num_tokens = {300, 97}, .seed = seed});
    const CacheShape& shape = cache.shape();
    update_key_bounds(machine.stream(), cache.update_all());
    const ScorePagesArgs args = cache.score(kGroup, seed + 50);
    score_pages(machine.stream(), args);
    machine.synchronize();
    std::vector<double> magnitude;
    reference::page_scores(args, &magnitude);
    const std::vector<double> slack = score_bounds(args, magnitude);
    double closest = std::numeric_limits<double>::infinity();
    for (size_t seq = 0; seq < shape.num_tokens.size(); ++seq) {
      for (int32_t token = 0; token < shape.num_tokens[seq]; ++token) {
        for (int32_t h = 0; h < shape.num_kv_heads * kGroup; ++h) {
          const int64_t head = h / kGroup;
          const auto index =
              (static_cast<int64_t>(seq) * shape.num_kv_heads + head) * cache.max_pages() +
              token / shape.page_tokens;
          const BFloat16* q = args.q.data<BFloat16>() +
                              (static_cast<int64_t>(seq) * args.q.dim(1) + h) * shape.head_dim;
          const double key_score =
              dot(q, cache.key(seq, token, static_cast<int32_t>(head)), shape.head_dim);
          const double page_score = element(args.scores, index);
          ASSERT_GE(page_score + slack[static_cast<size_t>(index)], key_score);
          closest = std::min(closest, page_score - key_score);
        }
      }
    }
    // The last page of 97 tokens has one token, whose score reaches the bound: the bound is tight.
    EXPECT_LT(closest, 0.01);
  }
}

// Sequences of one token: the page's bounds are its key, and the score is the exact product.
TEST(ScorePagesTest, OfAPageWithOneTokenIsItsKeysScore) {
  Machine machine;
  Cache cache(machine, {.head_dim = 128, .num_kv_heads = 1, .num_tokens = {1, 1, 1}});
  update_key_bounds(machine.stream(), cache.update_all());
  const ScorePagesArgs args = cache.score(1, 9);
  score_pages(machine.stream(), args);
  machine.synchronize();
  for (int64_t seq = 0; seq < 3; ++seq) {
    const BFloat16* q = args.q.data<BFloat16>() + seq * 128;
    EXPECT_NEAR(element(args.scores, seq * cache.max_pages()),
                dot(q, cache.key(static_cast<size_t>(seq), 0, 0), 128), 1e-3);
  }
}

TEST(ScorePagesTest, IsaAndThreadsChangeNothing) {
  std::vector<std::byte> first_bounds;
  std::vector<std::byte> first_scores;
  for (const CpuIsa isa : runnable_isas()) {
    for (const int threads : {1, 3}) {
      Machine machine(threads);
      if (machine.stream().device().kind() != DeviceKind::kCpu) GTEST_SKIP() << "CPU kernels";
      Cache cache(machine, {.head_dim = 128, .num_tokens = {2000, 37, 500}});
      cpu::CpuOps(isa).update_key_bounds(machine.stream(), cache.update_all());
      const ScorePagesArgs args = cache.score(4, 5);
      cpu::CpuOps(isa).score_pages(machine.stream(), args);
      machine.synchronize();
      if (first_bounds.empty()) {
        first_bounds = bytes_of(cache.bounds().minmax);
        first_scores = bytes_of(args.scores);
      }
      EXPECT_TRUE(bytes_of(cache.bounds().minmax) == first_bounds) << cpu_isa_name(isa);
      EXPECT_TRUE(bytes_of(args.scores) == first_scores) << cpu_isa_name(isa);
    }
  }
}

TEST(PageSelectionContractDeathTest, NamesTheSymbolThatIsWrong) {
  Machine machine;
  Cache cache(machine, {});
  UpdateKeyBoundsArgs update = cache.update_all();
  update.bounds.page_tokens = 16;
  EXPECT_DEATH(update_key_bounds(machine.stream(), update), "pages_per_block . bounds.page_tokens");
  ScorePagesArgs score = cache.score(2, 1);
  score.kv_end = machine.tensor(std::vector<int32_t>{1}, {1});
  EXPECT_DEATH(score_pages(machine.stream(), score), "kv_end is .*num_seqs is 4");
  score = cache.score(2, 1);
  score.zones = {.before = score.q, .far = score.q, .chunk_tokens = 96};
  EXPECT_DEATH(score_pages(machine.stream(), score), "zones.chunk_tokens must be a multiple");
}

}  // namespace
}  // namespace sluice::testing
