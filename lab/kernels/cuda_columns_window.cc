// One window: 28 query heads and 4 KV heads of 128, one column probe of each query tile, segments
// of 512 rows with 128 columns.
#include "cuda_columns_window.h"

#include <cmath>
#include <functional>
#include <vector>

#include "attention_call.h"
#include "ops/attention/attention.h"
#include "ops/ops.h"
#include "ops/tiles/tile_columns.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr int32_t kNumTokens = 1 << 20;
constexpr int32_t kNumHeads = 28;
constexpr int32_t kNumKvHeads = 4;
constexpr int32_t kHeadDim = 128;
constexpr int32_t kSegmentTokens = 512;
constexpr int32_t kColumns = 128;
constexpr int32_t kRowsPerTile = 4;

// Of random scores with variance 1 over all keys: shares are about 1 / kNumTokens.
const float kLogSum = std::log(static_cast<float>(kNumTokens)) + 0.5f;

class ColumnsWindow {
 public:
  ColumnsWindow(Workbench& bench, int32_t num_rows)
      : bench_(bench), rows_{.first = 0, .count = num_rows} {
    const AttentionCallShape shape{.num_rows = num_rows,
                                   .num_tokens = kNumTokens,
                                   .num_q_heads = kNumHeads,
                                   .num_kv_heads = kNumKvHeads,
                                   .head_dim = kHeadDim};
    attention_ = attention_call(bench, shape, shape.seq_blocks());
    attention_.block_table = reversed_table(bench, shape.seq_blocks());
    const int64_t num_tiles = rows_.num_q_tiles();
    const int64_t num_probes = num_tiles * kRowsPerTile;
    const int64_t num_segments = num_rows / kSegmentTokens;
    vectors_ = bench.tensor(DType::kBF16, {kNumHeads, num_probes, kHeadDim});
    scores_ = empty(DType::kI32, {kNumKvHeads, num_segments, kNumTokens});
    max_count_ = bench.tensor(std::vector<int32_t>(kNumKvHeads, kColumns));
    columns_ = {.positions = empty(DType::kI32, {kNumKvHeads, num_segments, kColumns}),
                .count = empty(DType::kI32, {kNumKvHeads, num_segments}),
                .kv = empty(DType::kBF16, {num_segments, kNumKvHeads, 2, kColumns, kHeadDim}),
                .segment_tokens = kSegmentTokens,
                .first_segment = (kNumTokens - num_rows) / kSegmentTokens};
    masses_ = {.lse = bench.tensor(
                   std::vector<float>(static_cast<size_t>(kNumHeads * num_probes), kLogSum),
                   {kNumHeads, num_probes}),
               .masses = empty(DType::kI32, {kNumKvHeads, num_tiles, kNumTokens / kTile}),
               .column_mass = empty(DType::kI32, {kNumKvHeads, num_tiles})};
  }

  void attend() const { attention(bench_.stream(), attention_); }
  void score() const {
    score_columns(bench_.stream(), {.vectors = vectors_,
                                    .lse = masses_.lse,
                                    .rows_per_tile = kRowsPerTile,
                                    .batch = attention_.batch,
                                    .rows = rows_,
                                    .scale = attention_.scale,
                                    .kv = attention_.kv,
                                    .kv_begin = attention_.kv_begin,
                                    .kv_end = attention_.kv_end,
                                    .block_table = attention_.block_table,
                                    .segment_tokens = kSegmentTokens,
                                    .scores = scores_});
  }
  void select() const {
    select_columns(bench_.stream(), {.scores = scores_,
                                     .max_count = max_count_,
                                     .batch = attention_.batch,
                                     .first_segment = columns_.first_segment,
                                     .rule = {},
                                     .columns = columns_});
  }
  void gather() const {
    gather_columns(bench_.stream(), {.columns = columns_,
                                     .first_segment = columns_.first_segment,
                                     .num_segments = static_cast<int32_t>(columns_.count.dim(1)),
                                     .kv = attention_.kv,
                                     .kv_begin = attention_.kv_begin,
                                     .kv_end = attention_.kv_end,
                                     .block_table = attention_.block_table});
  }
  void subtract() const {
    subtract_columns(bench_.stream(), {.vectors = vectors_,
                                       .rows_per_tile = kRowsPerTile,
                                       .batch = attention_.batch,
                                       .rows = rows_,
                                       .scale = attention_.scale,
                                       .columns = columns_,
                                       .masses = masses_});
  }

  double score_bytes() const { return static_cast<double>(scores_.num_bytes()); }
  double column_bytes() const { return static_cast<double>(columns_.kv.num_bytes()); }

 private:
  TensorView empty(DType dtype, std::initializer_list<int64_t> dims) const {
    const TensorView shape(nullptr, dtype, dims);
    std::byte* data = bench_.allocate(shape.num_bytes());
    bench_.stream().fill(data, shape.num_bytes(), 0);
    return TensorView(data, dtype, dims);
  }

  Workbench& bench_;
  TileRows rows_;
  AttentionArgs attention_;
  TensorView vectors_, scores_, max_count_;
  TileColumns columns_;
  TileMasses masses_;
};

}  // namespace

void print_columns(Workbench& bench, int32_t num_rows, double copy_rate) {
  const ColumnsWindow window(bench, num_rows);
  const double num_probes = static_cast<double>(kNumHeads) * num_rows / kTile;
  const double dense_flop = 4.0 * kNumHeads * kHeadDim * num_rows * kNumTokens;
  const double dense = bench.median_seconds([&] { window.attend(); });
  const double score = bench.median_seconds([&] { window.score(); });
  const double select = bench.median_seconds([&] { window.select(); });
  const double gather = bench.median_seconds([&] { window.gather(); });
  const double subtract = bench.median_seconds([&] { window.subtract(); });
  fmt::print(
      "columns, {} rows at 1M tokens, {} / {} heads: dense attention {:.3f} ms, {:.1f} TFLOP/s\n",
      num_rows, kNumHeads, kNumKvHeads, dense * 1e3, dense_flop / dense / 1e12);
  fmt::print("  score    {:8.3f} ms, {:5.2f} % of dense, {:.1f} TFLOP/s, {:.3f} T exponentials/s\n",
             score * 1e3, 100 * score / dense,
             num_probes * 2.0 * kNumTokens * kHeadDim / score / 1e12,
             num_probes * kNumTokens / score / 1e12);
  fmt::print(
      "  select   {:8.3f} ms, {:5.2f} % of dense; one read of the scores at the rate of copies "
      "{:.3f} ms\n",
      select * 1e3, 100 * select / dense, window.score_bytes() / copy_rate * 1e3);
  fmt::print(
      "  gather   {:8.3f} ms, {:5.2f} % of dense; its bytes at the rate of copies {:.3f} ms\n",
      gather * 1e3, 100 * gather / dense, 2 * window.column_bytes() / copy_rate * 1e3);
  fmt::print("  subtract {:8.3f} ms, {:5.2f} % of dense\n", subtract * 1e3, 100 * subtract / dense);
  std::fflush(stdout);
  bench.free_all();
}

}  // namespace sluice::bench
