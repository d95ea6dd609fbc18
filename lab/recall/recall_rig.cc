// Lays out a layer as the engine does, and calls the ops for one query tile at a time.
#include "lab/recall/recall_rig.h"

#include <algorithm>
#include <numeric>

#include "attention/policies/first_stage.h"
#include "attention/tile_scorer.h"
#include "core/error.h"
#include "ops/reference/softmax_mass.h"

namespace sluice::lab {
namespace {

int64_t num_tiles(int64_t num_tokens) {
  return (num_tokens + kMaskTileTokens - 1) / kMaskTileTokens;
}

}  // namespace

RecallRig::RecallRig(const RecallShape& shape, int num_threads)
    : shape_(shape),
      device_(make_device("cpu", {.num_threads = num_threads})),
      stream_(device_->make_stream({.name = "recall", .num_threads = num_threads})),
      team_(num_threads, "recall") {
  const int64_t heads = shape.num_q_heads;
  const int64_t dim = shape.head_dim;
  const int64_t tiles = num_tiles(shape.num_tokens);
  q_ = tensor(DType::kBF16, {shape.num_tokens, heads, dim});
  head_rows_ = tensor(DType::kBF16, {heads, kMaskTileTokens, dim});
  scores_ = tensor(DType::kF32, {heads, kMaskTileTokens, shape.num_tokens});
  for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
    const auto num_bytes =
        static_cast<int64_t>(packed_weight_bytes(*device_, shape.num_tokens, dim));
    packed_.push_back({.data = tensor(DType::kU8, {num_bytes}).bytes(),
                       .num_rows = shape.num_tokens,
                       .num_cols = dim});
  }
  blocks_.shape = {.num_kv_heads = shape.num_kv_heads,
                   .head_dim = shape.head_dim,
                   .block_tokens = kMaskTileTokens};
  blocks_.stride_bytes = blocks_.shape.block_bytes();
  blocks_.num_blocks = static_cast<int32_t>(tiles);
  blocks_.base = tensor(DType::kU8, {static_cast<int64_t>(blocks_.stride_bytes) * tiles}).bytes();
  block_table_ = tensor(DType::kI32, {1, tiles});
  std::iota(block_table_.data<int32_t>(), block_table_.data<int32_t>() + tiles, 0);
  row_begin_ = tensor(DType::kI32, {2});
  first_pos_ = tensor(DType::kI32, {1});
  kv_begin_ = tensor(DType::kI32, {1});
  kv_end_ = tensor(DType::kI32, {1});
  vectors_ = tensor(DType::kBF16, {heads, kMaskTileTokens, dim});
  records_ = tensor(DType::kF32, {heads, kMaskTileTokens, tiles});
  bits_ = tensor(DType::kI32, {1, shape.num_kv_heads, tiles, (tiles + 31) / 32});
  columns_.emplace(*device_, shape.num_tokens, shape.num_q_heads, blocks_.shape);
}

// Pinned memory: host and ops both reach it.
TensorView RecallRig::tensor(DType dtype, std::initializer_list<int64_t> dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  buffers_.push_back(
      device_->allocate(static_cast<size_t>(count) * dtype_bytes(dtype), MemoryKind::kPinned));
  return TensorView(buffers_.back().data(), dtype, dims);
}

void RecallRig::load(std::span<const float> q, std::span<const float> k) {
  SLUICE_CHECK(std::ssize(q) == q_.num_elements(), "{} queries for {}", q.size(), q_.to_string());
  SLUICE_CHECK(std::ssize(k) == shape_.num_tokens * shape_.num_kv_heads * shape_.head_dim,
               "{} keys", k.size());
  stream_->synchronize();
  std::transform(q.begin(), q.end(), q_.data<BFloat16>(),
                 [](float value) { return BFloat16(value); });
  fill_blocks(k);
  pack_keys(k);
}

// Values are never read: the ops are those that select.
void RecallRig::fill_blocks(std::span<const float> k) {
  const int64_t dim = shape_.head_dim;
  for (int64_t token = 0; token < shape_.num_tokens; ++token) {
    const auto block = static_cast<int32_t>(token / kMaskTileTokens);
    const auto in_block = static_cast<int32_t>(token % kMaskTileTokens);
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      const auto from = k.begin() + (token * shape_.num_kv_heads + head) * dim;
      std::transform(from, from + dim, blocks_.keys<BFloat16>(block, head, in_block),
                     [](float value) { return BFloat16(value); });
    }
  }
}

// The keys of a head are the weight of a product whose rows are queries.
void RecallRig::pack_keys(std::span<const float> k) {
  const int64_t dim = shape_.head_dim;
  std::vector<float> rows(static_cast<size_t>(shape_.num_tokens * dim));
  for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
    for (int64_t token = 0; token < shape_.num_tokens; ++token) {
      const auto from = k.begin() + (token * shape_.num_kv_heads + head) * dim;
      std::copy(from, from + dim, rows.begin() + token * dim);
    }
    pack_weight(*stream_, {.src = TensorView(rows.data(), DType::kF32, {shape_.num_tokens, dim}),
                           .dst = packed_[static_cast<size_t>(head)]});
    stream_->synchronize();  // `rows` is used again
  }
}

// Scores of the tile's rows with all keys, of every query head, in f32.
void RecallRig::multiply(int32_t q_tile) {
  const int64_t dim = shape_.head_dim;
  const auto* q = q_.data<BFloat16>();
  for (int64_t head = 0; head < shape_.num_q_heads; ++head) {
    for (int64_t row = 0; row < kMaskTileTokens; ++row) {
      const int64_t from = ((q_tile * kMaskTileTokens + row) * shape_.num_q_heads + head) * dim;
      std::copy_n(q + from, dim,
                  head_rows_.data<BFloat16>() + (head * kMaskTileTokens + row) * dim);
    }
  }
  for (int64_t head = 0; head < shape_.num_q_heads; ++head) {
    matmul(*stream_, {.x = head_rows_.rows(head, 1).reshape({kMaskTileTokens, dim}),
                      .weight = packed_[static_cast<size_t>(head / shape_.group())],
                      .bias = {},
                      .out = scores_.rows(head, 1).reshape({kMaskTileTokens, shape_.num_tokens})});
  }
  stream_->synchronize();
}

std::vector<double> RecallRig::head_masses(int32_t q_head, int32_t q_tile) const {
  const int64_t end = (q_tile + 1) * kMaskTileTokens;
  std::vector<double> masses(static_cast<size_t>(end));
  std::vector<double> row_scores;
  int32_t num_rows = 0;
  for (int64_t row = 0; row < kMaskTileTokens; ++row) {
    const float* products =
        scores_.data<float>() + (q_head * kMaskTileTokens + row) * shape_.num_tokens;
    row_scores.assign(products, products + q_tile * kMaskTileTokens + row + 1);
    for (double& score : row_scores) score *= double{shape_.scale};
    num_rows += reference::add_token_mass(row_scores, masses) ? 1 : 0;
  }
  for (double& mass : masses) mass /= std::max(num_rows, 1);
  return masses;
}

std::vector<std::vector<double>> RecallRig::token_masses(int32_t q_tile) {
  SLUICE_CHECK((q_tile + 1) * kMaskTileTokens <= shape_.num_tokens, "query tile {}", q_tile);
  multiply(q_tile);
  std::vector<std::vector<double>> masses(static_cast<size_t>(shape_.num_q_heads));
  team_.parallel_for(shape_.num_q_heads, [&](int64_t head) {
    masses[static_cast<size_t>(head)] = head_masses(static_cast<int32_t>(head), q_tile);
  });
  return masses;
}

RecallRig::QueryTiles RecallRig::segment_of(const Estimator& estimator, int32_t q_tile) const {
  const int32_t tiles = estimator.segment_tokens() / kMaskTileTokens;
  const int32_t first = q_tile / tiles * tiles;
  const auto end = std::min<int64_t>(int64_t{first} + tiles, num_tiles(shape_.num_tokens));
  return {first, static_cast<int32_t>(end)};
}

int64_t RecallRig::end_pos(const QueryTiles& tiles) const {
  return std::min(int64_t{tiles.end} * kMaskTileTokens, shape_.num_tokens);
}

// The rows as a batch of their own, with the keys up to their end.
ScoreTilesArgs RecallRig::score_call(const TileProbes& probes, const QueryTiles& tiles) {
  const int64_t heads = shape_.num_q_heads;
  const int64_t num_probes = int64_t{probes_per_tile(probes)} * tiles.count();
  const int64_t first_row = tiles.first * kMaskTileTokens;
  const auto end = static_cast<int32_t>(end_pos(tiles));
  const auto num_rows = static_cast<int32_t>(end - first_row);
  row_begin_.data<int32_t>()[0] = 0;
  row_begin_.data<int32_t>()[1] = num_rows;
  *first_pos_.data<int32_t>() = static_cast<int32_t>(first_row);
  *kv_begin_.data<int32_t>() = 0;
  *kv_end_.data<int32_t>() = end;
  return {.q = q_.rows(first_row, num_rows),
          .batch = {.row_begin = row_begin_,
                    .first_pos = first_pos_,
                    .max_rows = num_rows,
                    .max_kv_tokens = end},
          .rows = {.first = 0, .count = num_rows},
          .scale = shape_.scale,
          .kv = blocks_,
          .kv_begin = kv_begin_,
          .kv_end = kv_end_,
          .block_table = block_table_,
          .probes = probes,
          .vectors = part_of(vectors_, {heads, num_probes, probe_width(probes, shape_.head_dim)}),
          .records = part_of(records_, {heads, num_probes, tiles.end})};
}

TileMask RecallRig::mask_of(const QueryTiles& tiles) const {
  return {.bits = part_of(bits_, {1, shape_.num_kv_heads, tiles.count(), bits_.dim(3)}),
          .first_q_tile = tiles.first};
}

// A prompt that ends behind the rows: none of them is one of its last.
int64_t RecallRig::prompt_end(const QueryTiles& tiles, const TileRule& rule) const {
  return (int64_t{tiles.end} + 1) * kMaskTileTokens + rule.tail_tokens;
}

TileMask RecallRig::run_rule(const ScoreTilesArgs& scored, const TileRule& rule,
                             const QueryTiles& tiles, const TileMasses& masses) {
  const TileMask mask = mask_of(tiles);
  select_tiles(*stream_, {.records = scored.records,
                          .probes_per_tile = probes_per_tile(scored.probes),
                          .batch = scored.batch,
                          .rows = scored.rows,
                          .prompt_end = prompt_end(tiles, rule),
                          .rule = rule,
                          .mask = mask,
                          .masses = masses});
  return mask;
}

std::vector<RecallChoice> RecallRig::read(const TileMask& mask, const TileColumns& columns,
                                          int32_t q_tile) {
  stream_->synchronize();
  std::vector<RecallChoice> heads;
  for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
    heads.push_back(read_choice(mask, columns, head, q_tile));
  }
  return heads;
}

RecallRig::Selections RecallRig::select(const Estimator& estimator, int32_t q_tile,
                                        std::span<const RecallRule> rules) {
  SLUICE_CHECK((q_tile + 1) * kMaskTileTokens <= shape_.num_tokens, "query tile {}", q_tile);
  stream_->synchronize();  // the small arrays are written by the host
  switch (estimator.columns) {
    case RecallColumns::kOfRows:
      return select_with_columns(estimator, q_tile, rules);
    case RecallColumns::kVerticals:
      return select_verticals(estimator, q_tile, rules);
    default:
      return select_by_tiles(estimator, q_tile, rules);
  }
}

RecallRig::Selections RecallRig::select_by_tiles(const Estimator& estimator, int32_t q_tile,
                                                 std::span<const RecallRule> rules) {
  const QueryTiles tiles = segment_of(estimator, q_tile);
  ScoreTilesArgs args = score_call(estimator.probes, tiles);
  if (estimator.has_first_stage) {
    const ScoreTilesArgs pools = score_call(first_stage_probes(estimator.probes), tiles);
    score_tiles(*stream_, pools);
    // All rules of sluice-lab recall force the same tiles.
    args.visits = run_rule(pools, first_stage_rule(rules.front().tiles, 0), tiles);
  }
  score_tiles(*stream_, args);
  Selections selections;
  for (const RecallRule& rule : rules) {
    selections.push_back(read(run_rule(args, rule.tiles, tiles), {}, q_tile));
  }
  return selections;
}

// Columns belong to a segment, so all of its query tiles are scored for the one that is asked for.
RecallRig::Selections RecallRig::select_with_columns(const Estimator& estimator, int32_t q_tile,
                                                     std::span<const RecallRule> rules) {
  const QueryTiles tiles = segment_of(estimator, q_tile);
  const ScoreTilesArgs args = score_call(estimator.probes, tiles);
  score_tiles(*stream_, args);
  columns_->score_rows(*stream_, args, estimator.segment_tokens());
  Selections selections;
  for (const RecallRule& rule : rules) {
    TileColumns columns;
    TileMasses masses;
    if (rule.column_tiles > 0) {
      columns = columns_->take(*stream_, args, {}, rule.column_tiles);
      masses = columns_->masses_beside(*stream_, args, columns);
    }
    selections.push_back(read(run_rule(args, rule.tiles, tiles, masses), columns, q_tile));
  }
  return selections;
}

// Every rule takes other numbers of the same sums.
RecallRig::Selections RecallRig::select_verticals(const Estimator& estimator, int32_t q_tile,
                                                  std::span<const RecallRule> rules) {
  const QueryTiles tiles = segment_of(estimator, q_tile);
  ScoreTilesArgs args = score_call({.rows_per_tile = 1}, tiles);
  args.vectors = vectors_;
  args.records = records_;
  columns_->score_verticals(*stream_, args, estimator.segment_tokens());
  const ColumnRule column_rule{.to_segment_end = true};
  Selections selections;
  for (const RecallRule& rule : rules) {
    TileColumns columns;
    if (rule.column_tiles > 0) {
      columns = columns_->take(*stream_, args, column_rule, rule.column_tiles);
    }
    const TileMask mask = mask_of(tiles);
    columns_->select_diagonals_into(*stream_, mask, args, rule.tiles,
                                    prompt_end(tiles, rule.tiles));
    selections.push_back(read(mask, columns, q_tile));
  }
  return selections;
}

// The whole text as one pass. The batch arrays are those of score_call, written anew.
SelectInput RecallRig::select_input(int32_t layer) {
  const auto num_tokens = static_cast<int32_t>(shape_.num_tokens);
  row_begin_.data<int32_t>()[0] = 0;
  row_begin_.data<int32_t>()[1] = num_tokens;
  *first_pos_.data<int32_t>() = 0;
  *kv_begin_.data<int32_t>() = 0;
  *kv_end_.data<int32_t>() = num_tokens;
  return {.layer = LayerId(layer),
          .q = q_,
          .scale = shape_.scale,
          .batch = {.row_begin = row_begin_,
                    .first_pos = first_pos_,
                    .max_rows = num_tokens,
                    .max_kv_tokens = num_tokens},
          .span = {.first_pos = 0, .num_rows = num_tokens, .prompt_end = num_tokens},
          .kv_end = kv_end_,
          .block_ids = block_table_};
}

Selection RecallRig::select(PolicyPair& policies, int32_t layer) {
  stream_->synchronize();  // the small arrays are written by the host
  // Policies count layers from 0, and some make the first ones dense.
  policies.initialize(*device_, {.num_layers = layer + 1, .block = blocks_.shape},
                      blocks_.num_blocks,
                      {.max_decode_seqs = 1,
                       .max_prefill_rows = shape_.num_tokens,
                       .max_tokens = num_tiles(shape_.num_tokens) * kMaskTileTokens,
                       .num_q_heads = shape_.num_q_heads});
  const SelectInput input = select_input(layer);
  const KeyRun keys{
      .kv = blocks_, .kv_begin = kv_begin_, .kv_end = kv_end_, .block_table = block_table_};
  policies.on_keys_written(*stream_, {.kind = Phase::kPrefill,
                                      .layer = input.layer,
                                      .batch = input.batch,
                                      .kv = blocks_,
                                      .kv_begin = kv_begin_,
                                      .block_table = block_table_,
                                      .block_ids = block_table_});
  Policy& policy = policies.of(Phase::kPrefill);
  const auto num_rows = static_cast<int32_t>(shape_.num_tokens);
  TileScorer* scorer = policy.tile_scorer();
  const int32_t window_rows = scorer ? scorer->window_rows(input) : 0;
  for (int32_t first = 0; window_rows > 0 && first < num_rows; first += window_rows) {
    const TileRows window{first, std::min(window_rows, num_rows - first)};
    for (int32_t walk = 0; walk < scorer->num_walks(); ++walk) {
      KeyRun run = keys;
      run.walk = walk;
      scorer->score(*stream_, input, window, run);
      scorer->end_walk(*stream_, input, window, walk);
    }
    scorer->choose(*stream_, input, window);
  }
  const Selection selection = policy.select(*stream_, input);
  stream_->synchronize();
  return selection;
}

}  // namespace sluice::lab
