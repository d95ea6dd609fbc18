// What is computed from KV in e4m3 and in int8 beside attention: bounds of pages, scores of tiles,
// columns and lines, gathered columns and audits, each against the same op over bf16 that was
// rounded before, bit for bit.
//
// Reveals: scales of the wrong token, and keys of another head or block after a conversion.
#include <array>

#include "attention_check.h"
#include "ops/pages/page_selection.h"
#include "ops/tiles/audit_mass.h"
#include "ops/tiles/scored_text.h"
#include "ops/tiles/tile_columns.h"
#include "ops/tiles/tile_lines.h"
#include "planted_text.h"
#include "rounded_blocks.h"

namespace sluice::testing {
namespace {

// Calls op(args, kv) with elements of one byte and with rounded bf16; the bytes that it returns
// must be the same.
template <typename F>
void expect_same_results(Machine& machine, const KvBlocksView& kv, const F& op) {
  const KvBlocksView fp8 = rounded<KvElement::kE4m3>(machine, kv);
  EXPECT_TRUE(op(fp8) == op(as_bf16(machine, fp8)));
  const KvBlocksView int8 = rounded<KvElement::kInt8>(machine, kv);
  EXPECT_TRUE(op(int8) == op(as_bf16(machine, int8)));
}

TEST(Fp8Kv, BoundsAreThoseOfWhatIsStored) {
  for (const int32_t head_dim : {16, 64, 128}) {
    Machine machine;
    const PlantedText text = PlantedText::random(300, 3, 2, 1, head_dim);
    const ScoreTilesArgs keys = text.call(machine, {}, 100, 64);
    expect_same_results(machine, keys.kv, [&](const KvBlocksView& kv) {
      UpdateKeyBoundsArgs args{.batch = keys.batch,
                               .kv = kv,
                               .kv_begin = keys.kv_begin,
                               .block_table = keys.block_table,
                               .block_ids = keys.block_table};
      args.bounds = {.minmax = machine.tensor(DType::kBF16, {5, 4, 2, 2, head_dim}),
                     .page_tokens = 16};
      update_key_bounds(machine.stream(), args);
      machine.synchronize();
      return bytes_of(args.bounds.minmax);
    });
  }
}

// A GPU converts keys before it scores them: of an odd number of heads, and for kernels of its own
// where heads have 64 or 128 channels.
TEST(Fp8Kv, TileScoresAreThoseOfRoundedBf16) {
  const std::array<TileProbes, 3> kinds = {TileProbes{.rows_per_tile = 4},
                                           TileProbes{.kind = TileProbeKind::kAntidiagonal},
                                           TileProbes{.kind = TileProbeKind::kPooled}};
  for (const TileProbes& probes : kinds) {
    for (const int32_t head_dim : {48, 64, 128}) {
      SCOPED_TRACE(fmt::format("kind {} head_dim {}", static_cast<int>(probes.kind), head_dim));
      Machine machine;
      const int32_t num_kv_heads = head_dim == 64 ? 3 : 2;
      const PlantedText text =
          PlantedText::random(5 * kMaskTileTokens + 30, 3, num_kv_heads, 2, head_dim);
      ScoreTilesArgs args = text.call(machine, probes, 0, 128);
      expect_same_results(machine, args.kv, [&](const KvBlocksView& kv) {
        ScoreTilesArgs one = args;
        one.kv = kv;
        score_tiles(machine.stream(), one);
        machine.synchronize();
        return bytes_of(one.records);
      });
    }
  }
}

// score_line_rows and score_lines. `tiles`: their queries and batch.
std::vector<std::byte> line_scores(Machine& machine, const ScoreTilesArgs& tiles,
                                   const KvBlocksView& kv, int64_t num_lists) {
  const int64_t num_tiles = tiles.records.dim(2);
  const int64_t num_segments = (tiles.rows.count + kSegment - 1) / kSegment;
  const ScoreLineRowsArgs rows{
      .q = tiles.q,
      .batch = tiles.batch,
      .rows = tiles.rows,
      .scale = tiles.scale,
      .kv = kv,
      .kv_begin = tiles.kv_begin,
      .kv_end = tiles.kv_end,
      .block_table = tiles.block_table,
      .lines = {.segment_tokens = kSegment, .count = 20},
      .vectors = machine.tensor(DType::kBF16, {tiles.q.dim(1), 20 * num_segments, tiles.q.dim(2)}),
      .records = machine.tensor(DType::kF32, {tiles.q.dim(1), 20 * num_segments, num_tiles})};
  const ScoreLinesArgs lines{
      .vectors = rows.vectors,
      .records = rows.records,
      .lse = machine.tensor(DType::kF32, {tiles.q.dim(1), 20 * num_segments}),
      .batch = tiles.batch,
      .rows = tiles.rows,
      .scale = tiles.scale,
      .kv = kv,
      .kv_begin = tiles.kv_begin,
      .kv_end = tiles.kv_end,
      .block_table = tiles.block_table,
      .lines = rows.lines,
      .verticals = machine.tensor(DType::kI32, {num_lists, num_segments, num_tiles * kTile}),
      .diagonals = machine.tensor(DType::kI64, {num_lists, num_segments, num_tiles})};
  score_line_rows(machine.stream(), rows);
  score_lines(machine.stream(), lines);
  machine.synchronize();
  std::vector<std::byte> all = bytes_of(rows.records);
  for (const TensorView& part : {lines.verticals, lines.diagonals}) {
    const std::vector<std::byte> bytes = bytes_of(part);
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

TEST(Fp8Kv, ScoresOfLinesAreThoseOfRoundedBf16) {
  for (const int32_t head_dim : {48, 128}) {
    SCOPED_TRACE(head_dim);
    Machine machine;
    const PlantedText text = PlantedText::random(5 * kTile + 30, 3, 3, 2, head_dim);
    const ScoreTilesArgs tiles = text.call(machine, {}, kFirst);
    for (const int64_t num_lists : {1, 3}) {
      expect_same_results(machine, tiles.kv, [&](const KvBlocksView& kv) {
        return line_scores(machine, tiles, kv, num_lists);
      });
    }
  }
}

// Over all keys, and over a run of the later ones.
TEST(Fp8Kv, ScoresOfColumnsAreThoseOfRoundedBf16) {
  for (const int32_t head_dim : {48, 64, 128}) {
    for (const int64_t num_lists : {1, 2}) {
      SCOPED_TRACE(fmt::format("head_dim {}, {} lists", head_dim, num_lists));
      Machine machine;
      const PlantedText text = PlantedText::random(5 * kTile + 30, 3, 2, 3, head_dim);
      const Scored scored = score(machine, text, num_lists);
      ScoreColumnsArgs args = score_args(scored.tiles, scored.masses, scored.scores);
      for (const int32_t begin : {0, 2 * kTile}) {
        const int64_t first = begin / args.kv.shape.block_tokens;
        args.kv_begin = machine.tensor(std::vector<int32_t>{begin}, {1});
        args.block_table = TensorView(scored.tiles.block_table.bytes() + first * 4, DType::kI32,
                                      {1, scored.tiles.block_table.dim(1) - first});
        expect_same_results(machine, scored.tiles.kv, [&](const KvBlocksView& kv) {
          args.kv = kv;
          score_columns(machine.stream(), args);
          machine.synchronize();
          return bytes_of(args.scores);
        });
      }
    }
  }
}

TEST(Fp8Kv, GatheredColumnsAreThoseOfRoundedBf16) {
  const AttentionProblem problem(
      {.head_dim = 48, .num_kv_heads = 2, .seqs = {{.num_rows = 500, .first_pos = 512}}});
  AttentionRun run{.block_tokens = 64};
  run.columns_of = [](int32_t head, int32_t segment) {
    return half_of_pages(200 * segment, 7u + 3u * static_cast<uint32_t>(head));
  };
  Machine machine;
  const AttentionArgs whole = problem.call(machine, run, 0, 1012);
  const TileColumns columns = masked_in(whole.selection)->columns;
  expect_same_results(machine, whole.kv, [&](const KvBlocksView& kv) {
    TileColumns to = columns;
    to.kv = machine.tensor(DType::kBF16, {1, 2, 2, columns.kv.dim(3), 48});
    gather_columns(machine.stream(), {.columns = to,
                                      .first_segment = to.first_segment,
                                      .num_segments = 1,
                                      .kv = kv,
                                      .kv_begin = whole.kv_begin,
                                      .kv_end = whole.kv_end,
                                      .block_table = whole.block_table});
    machine.synchronize();
    return bytes_of(to.kv);
  });
}

TEST(Fp8Kv, AuditsMeasureWhatIsStored) {
  Machine machine;
  const PlantedText text = PlantedText::random(12 * kMaskTileTokens, 5, 1, 2, 64);
  const ScoreTilesArgs keys = text.call(machine, {}, 0, 128);
  std::vector<int32_t> words;
  for (int32_t tile = 0; tile < 12; ++tile) words.push_back(0x555 & ((2 << tile) - 1));
  expect_same_results(machine, keys.kv, [&](const KvBlocksView& kv) {
    const AuditMassArgs args{
        .q = keys.q,
        .batch = keys.batch,
        .rows = keys.rows,
        .scale = keys.scale,
        .kv = kv,
        .kv_begin = keys.kv_begin,
        .kv_end = keys.kv_end,
        .block_table = keys.block_table,
        .mask = {.bits = machine.tensor(words, {1, 1, 12, 1}), .first_q_tile = 0},
        .state = machine.tensor(DType::kF32, {num_audit_groups(0, 12), kAuditParts, 2, 4}),
        .tally = machine.tensor(std::vector<int64_t>(kAuditCounts + 2), {kAuditCounts + 2})};
    audit_mass(machine.stream(), args);
    machine.synchronize();
    return bytes_of(args.tally);
  });
}

}  // namespace
}  // namespace sluice::testing
