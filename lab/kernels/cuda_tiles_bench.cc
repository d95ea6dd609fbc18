// Selection of tile masks on CUDA: time of score_tiles and select_tiles for whole prompts, of
// audit_mass, of attention over the masks, and of the ops of columns for windows at the end of a
// million tokens ("columns"), beside dense attention of the same rows in the same run.
//
//   cuda_tiles_bench [--shape SUBSTRING]
//
// Rows pass in windows whose records fit 64 MiB, as in the engine. `rate` is that of the products
// alone. A layer is selection and attention with at most 36 tiles a query tile, which are 7 % of
// 128K tokens; coverage of random numbers would take nearly all, and says nothing about a model.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "attention/policies/first_stage.h"
#include "attention_call.h"
#include "cuda_columns_window.h"
#include "cuda_workbench.h"
#include "ops/ops.h"
#include "ops/tiles/audit_mass.h"
#include "ops/tiles/tile_selection.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr int32_t kTile = kMaskTileTokens;
constexpr int64_t kRecordBytes = int64_t{64} << 20;
constexpr TileRule kRule{.share = kMassOne / 10 * 9, .threshold_tokens = 4096, .max_tiles = 36};

struct Estimator {
  const char* name;
  TileProbes probes;
  double share_of_dense;         // of the operations of dense attention
  bool has_first_stage = false;  // pools keep a quarter of the tiles, and only these are scored
};

const Estimator kEstimators[] = {
    {"sampled, 4 rows", {.rows_per_tile = 4}, 4 / 256.0},
    {"sampled, two stages", {.rows_per_tile = 4}, 1 / 256.0 + 4 / 256.0 / 16, true},
    {"xattention, stride 16", {.kind = TileProbeKind::kAntidiagonal, .stride = 16}, 1 / 32.0},
    {"xattention, stride 8", {.kind = TileProbeKind::kAntidiagonal, .stride = 8}, 1 / 16.0},
    {"avgpool, pools of 16", {.kind = TileProbeKind::kPooled}, 1 / 256.0 / 16},
};

bool matches(std::string_view name, std::string_view wanted) {
  return name.find(wanted) != std::string_view::npos;
}

bool has_prompts(std::string_view wanted) {
  return matches("audit", wanted) ||
         std::any_of(std::begin(kEstimators), std::end(kEstimators),
                     [&](const Estimator& estimator) { return matches(estimator.name, wanted); });
}

// One prompt and the buffers of a pass over it.
class TileSelectionRun {
 public:
  TileSelectionRun(Workbench& bench, const AttentionArgs& attention, const Estimator& estimator)
      : bench_(bench),
        attention_(attention),
        probes_(estimator.probes),
        has_first_stage_(estimator.has_first_stage) {
    const int64_t num_rows = attention.q.dim(0);
    const int64_t num_heads = attention.q.dim(1);
    const int64_t num_tiles = num_rows / kTile;
    const int64_t per_tile = probes_per_tile(probes_);
    window_tiles_ =
        std::clamp<int64_t>(kRecordBytes / (num_heads * per_tile * num_tiles * 4), 4, num_tiles);
    const int64_t num_probes = window_tiles_ * per_tile;
    vectors_ =
        empty(DType::kBF16, {num_heads, num_probes, probe_width(probes_, attention.q.dim(2))});
    records_ = empty(DType::kF32, {num_heads, num_probes, num_tiles});
    mask_ = {.bits = empty(DType::kI32,
                           {1, attention.kv.shape.num_kv_heads, num_tiles, (num_tiles + 31) / 32})};
    counts_ = bench.tensor(std::vector<int64_t>{0, 0, 0});
  }

  // All windows; without `selects` the scores alone.
  void enqueue(bool selects) const {
    const auto num_rows = static_cast<int32_t>(attention_.q.dim(0));
    const auto window_rows = static_cast<int32_t>(window_tiles_ * kTile);
    for (int32_t first = 0; first < num_rows; first += window_rows) {
      const TileRows rows{.first = first, .count = std::min(window_rows, num_rows - first)};
      if (has_first_stage_) {
        score(rows, first_stage_probes(probes_), {});
        select(rows, first_stage_probes(probes_), first_stage_rule(kRule, 0), {});
      }
      score(rows, probes_, has_first_stage_ ? mask_ : TileMask{});
      if (selects) select(rows, probes_, kRule, counts_);
    }
  }

  // Attention of all rows over the mask that `enqueue` has selected.
  void attend() const {
    AttentionArgs args = attention_;
    args.selection = MaskedTiles{.mask = mask_};
    attention(bench_.stream(), args);
  }

  // The share of visible tiles that all calls so far took.
  double density() const {
    std::vector<int64_t> counts(3);
    bench_.stream().copy({.dst = reinterpret_cast<std::byte*>(counts.data()),
                          .src = counts_.bytes(),
                          .num_bytes = counts_.num_bytes()});
    bench_.stream().synchronize();
    return static_cast<double>(counts[0]) / static_cast<double>(counts[1]);
  }

 private:
  void score(const TileRows& rows, const TileProbes& probes, const TileMask& visits) const {
    score_tiles(bench_.stream(), {.q = attention_.q,
                                  .batch = attention_.batch,
                                  .rows = rows,
                                  .scale = attention_.scale,
                                  .kv = attention_.kv,
                                  .kv_begin = attention_.kv_begin,
                                  .kv_end = attention_.kv_end,
                                  .block_table = attention_.block_table,
                                  .probes = probes,
                                  .vectors = first_probes(vectors_, rows, probes),
                                  .records = first_probes(records_, rows, probes),
                                  .visits = visits});
  }
  void select(const TileRows& rows, const TileProbes& probes, const TileRule& rule,
              const TensorView& counts) const {
    select_tiles(bench_.stream(), {.records = first_probes(records_, rows, probes),
                                   .probes_per_tile = probes_per_tile(probes),
                                   .batch = attention_.batch,
                                   .rows = rows,
                                   .prompt_end = attention_.q.dim(0),
                                   .rule = rule,
                                   .mask = mask_,
                                   .counts = counts});
  }
  TensorView empty(DType dtype, std::initializer_list<int64_t> dims) const {
    const TensorView shape(nullptr, dtype, dims);
    return TensorView(bench_.allocate(shape.num_bytes()), dtype, dims);
  }
  // [heads][probes of the rows][...] in the memory of a tensor of more probes.
  static TensorView first_probes(const TensorView& view, const TileRows& rows,
                                 const TileProbes& probes) {
    const int64_t num_probes = int64_t{rows.num_q_tiles()} * probes_per_tile(probes);
    return TensorView(view.bytes(), view.dtype(), {view.dim(0), num_probes, view.dim(2)});
  }

  Workbench& bench_;
  const AttentionArgs& attention_;
  TileProbes probes_;
  bool has_first_stage_;
  int64_t window_tiles_ = 0;
  TensorView vectors_, records_, counts_;
  TileMask mask_;
};

// The audit of the last `num_rows` rows of a prompt. Bits of a mask do not change its time.
double audit_seconds(Workbench& bench, const AttentionArgs& attention, int32_t num_rows) {
  const auto num_tokens = static_cast<int32_t>(attention.q.dim(0));
  const int64_t num_heads = attention.q.dim(1);
  const int32_t first_pos = num_tokens - num_rows;
  const int64_t num_tiles = num_rows / kTile;
  const int64_t num_words = (num_tokens / kTile + 31) / 32;
  const int64_t num_groups = num_audit_groups(first_pos / kTile, num_rows / kTile);
  const TensorView bits =
      bench.tensor(std::vector<int32_t>(static_cast<size_t>(num_tiles * num_words)));
  const TensorView state = bench.tensor(
      std::vector<float>(static_cast<size_t>(num_groups * kAuditParts * num_heads * 4)));
  AuditMassArgs args{
      .q = attention.q.rows(first_pos, num_rows),
      .batch = attention.batch,
      .rows = {.first = 0, .count = num_rows},
      .scale = attention.scale,
      .kv = attention.kv,
      .kv_begin = attention.kv_begin,
      .kv_end = attention.kv_end,
      .block_table = attention.block_table,
      .mask = {.bits = bits.reshape({1, 1, num_tiles, num_words}),
               .first_q_tile = first_pos / kTile},
      .state = state.reshape({num_groups, kAuditParts, num_heads, 4}),
      .tally = bench.tensor(std::vector<int64_t>(static_cast<size_t>(kAuditCounts + num_heads)))};
  args.batch.row_begin = bench.tensor(std::vector<int32_t>{0, num_rows});
  args.batch.first_pos = bench.tensor(std::vector<int32_t>{first_pos});
  return bench.median_seconds([&] { audit_mass(bench.stream(), args); });
}

void print_prompt(Workbench& bench, int32_t num_tokens, int32_t num_q_heads,
                  std::string_view wanted) {
  const AttentionCallShape shape{
      .num_rows = num_tokens, .num_tokens = num_tokens, .num_q_heads = num_q_heads};
  AttentionArgs args = attention_call(bench, shape, shape.seq_blocks());
  args.block_table = reversed_table(bench, shape.seq_blocks());
  const double dense = bench.median_seconds([&] { attention(bench.stream(), args); });
  const double flop = 2.0 * num_tokens * num_tokens * num_q_heads * shape.head_dim;
  fmt::print("{}K tokens, {} / {} heads: dense attention {:.3f} ms, {:.1f} TFLOP/s\n",
             num_tokens / 1024, num_q_heads, shape.num_kv_heads, dense * 1e3, flop / dense / 1e12);
  for (const Estimator& estimator : kEstimators) {
    if (!matches(estimator.name, wanted)) continue;
    const TileSelectionRun run(bench, args, estimator);
    const double score = bench.median_seconds([&] { run.enqueue(false); });
    const double both = bench.median_seconds([&] { run.enqueue(true); });
    const double attended = bench.median_seconds([&] { run.attend(); });
    fmt::print(
        "  {:<22} score {:8.3f} ms (rate {:5.1f} TFLOP/s)  select {:7.3f} ms  {:5.2f} % of dense  "
        "attention over {:4.1f} % of tiles {:8.3f} ms  layer {:5.2f} times dense\n",
        estimator.name, score * 1e3, flop * estimator.share_of_dense / score / 1e12,
        (both - score) * 1e3, 100 * both / dense, 100 * run.density(), attended * 1e3,
        dense / (both + attended));
    std::fflush(stdout);
  }
  if (matches("audit", wanted)) {
    const double whole = audit_seconds(bench, args, num_tokens);
    fmt::print("  {:<22} {:8.3f} ms, {:.2f} % of dense; of the last 8K rows {:.3f} ms\n", "audit",
               whole * 1e3, 100 * whole / dense, audit_seconds(bench, args, 8192) * 1e3);
  }
  bench.free_all();
}

int run(int argc, char** argv) {
  const std::string_view wanted =
      argc == 3 && argv[1] == std::string_view("--shape") ? argv[2] : "";
  if (argc != 1 && wanted.empty()) {
    fail(ErrorCode::kInvalidArgument, "unknown option {}; known: --shape", argv[1]);
  }
  print_header("cuda_tiles_bench");
  Workbench bench;
  fmt::print("GPU: {}; head_dim 128, blocks of 256\n", bench.device().info().name);
  if (matches("columns", wanted)) {
    const double copy_rate = bench.copy_rate();
    for (const int32_t num_rows : {2560, 8192}) print_columns(bench, num_rows, copy_rate);
  }
  if (!has_prompts(wanted)) return 0;
  for (const int32_t num_tokens : {32768, 131072}) {
    for (const int32_t num_q_heads : {32, 16}) print_prompt(bench, num_tokens, num_q_heads, wanted);
  }
  return 0;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  return sluice::bench::run_reporting("cuda_tiles_bench", sluice::bench::run, argc, argv);
}
