// Tile masks of prefill, and columns beside them, where queries differ by zones of keys, against
// the formula in double precision.
//
// Reveals: a tile or a column that is attended to with another zone's queries where a walk leaves
// tiles out at a border or begins after one. A mask of all tiles is no mask, and cuts change no
// bit.
#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "ops/tiles/tile_columns.h"
#include "ops/zones/zone_problem.h"

namespace sluice::testing {
namespace {

// Whether query tile i of a KV head attends to a KV tile.
using IsSet = std::function<bool(int32_t head, int32_t q_tile, int32_t kv_tile)>;

// The diagonal, and of the other tiles about one of `one_of`.
IsSet random_tiles(uint32_t one_of) {
  return [=](int32_t head, int32_t q_tile, int32_t kv_tile) {
    std::mt19937 generator(static_cast<uint32_t>((head * 64 + q_tile) * 64 + kv_tile) + 3);
    generator.discard(5);
    return q_tile == kv_tile || generator() % one_of == 0;
  };
}

TileMask make_mask(Machine& machine, const Problem& problem, int32_t first_row,
                   const IsSet& is_set) {
  const auto num_tiles = static_cast<int32_t>(mask_tiles_of(problem.num_tokens));
  const int32_t first_tile = first_row / kMaskTileTokens;
  std::vector<int32_t> bits;
  for (int32_t head = 0; head < problem.shape.kv_heads; ++head) {
    for (int32_t q_tile = first_tile; q_tile < num_tiles; ++q_tile) {
      uint32_t word = 0;
      for (int32_t tile = 0; tile < num_tiles; ++tile) {
        if (is_set(head, q_tile, tile)) word |= 1u << tile;
      }
      bits.push_back(static_cast<int32_t>(word));
    }
  }
  return {.bits = machine.tensor(bits, {1, problem.shape.kv_heads, num_tiles - first_tile, 1}),
          .first_q_tile = first_tile};
}

constexpr int32_t kSegmentTokens = 256;
constexpr int32_t kMaxColumns = 128;

// Columns of a KV head's segment: about 60 of the tokens up to the segment's end, ascending.
std::vector<int32_t> columns_of(const Problem& problem, int32_t head, int32_t segment) {
  const int32_t end = std::min(problem.num_tokens, (segment + 1) * kSegmentTokens);
  std::mt19937 generator(static_cast<uint32_t>(head * 100 + segment));
  std::vector<int32_t> positions;
  for (int32_t token = 0; token < end; ++token) {
    if (std::cmp_less(generator() % static_cast<uint32_t>(end), 60)) positions.push_back(token);
  }
  positions.resize(std::min<size_t>(positions.size(), kMaxColumns));
  return positions;
}

TileColumns make_columns(ZoneRig& rig, const Problem& problem, int32_t first_row) {
  Machine& machine = rig.machine();
  const Shape& shape = problem.shape;
  const int32_t first = first_row / kSegmentTokens;
  const int32_t num_segments = (problem.num_tokens + kSegmentTokens - 1) / kSegmentTokens - first;
  std::vector<int32_t> positions;
  std::vector<int32_t> counts;
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    for (int32_t segment = first; segment < first + num_segments; ++segment) {
      std::vector<int32_t> list = columns_of(problem, head, segment);
      counts.push_back(static_cast<int32_t>(list.size()));
      list.resize(kMaxColumns, -1);
      positions.insert(positions.end(), list.begin(), list.end());
    }
  }
  const TileColumns columns{
      .positions = machine.tensor(positions, {shape.kv_heads, num_segments, kMaxColumns}),
      .count = machine.tensor(counts, {shape.kv_heads, num_segments}),
      .kv = machine.tensor(DType::kBF16,
                           {num_segments, shape.kv_heads, 2, kMaxColumns, shape.head_dim}),
      .segment_tokens = kSegmentTokens,
      .first_segment = first};
  const AttentionArgs all = rig.call(0, problem.num_tokens);
  gather_columns(machine.stream(), {.columns = columns,
                                    .first_segment = first,
                                    .num_segments = num_segments,
                                    .kv = all.kv,
                                    .kv_begin = all.kv_begin,
                                    .kv_end = all.kv_end,
                                    .block_table = all.block_table});
  return columns;
}

// Rows from `first_row` on, under a mask, with columns or not, or without a mask, in runs that end
// at `cuts` and at the end.
std::vector<BFloat16> run_masked(const Problem& problem, int32_t first_row, const IsSet* is_set,
                                 std::vector<int32_t> cuts = {}, bool has_columns = false) {
  ZoneRig rig(problem, first_row);
  Selection selection;
  if (is_set != nullptr) {
    MaskedTiles tiles{.mask = make_mask(rig.machine(), problem, first_row, *is_set), .columns = {}};
    if (has_columns) tiles.columns = make_columns(rig, problem, first_row);
    selection = tiles;
  }
  cuts.push_back(problem.num_tokens);
  int32_t begin = 0;
  TensorView out;
  for (const int32_t end : cuts) {
    AttentionArgs args = rig.call(begin, end);
    args.selection = selection;
    attention(rig.machine().stream(), args);
    out = args.out;
    begin = end;
  }
  rig.machine().synchronize();
  return values_of<BFloat16>(out);
}

double masked_error(const Problem& problem, const std::vector<BFloat16>& out, int32_t first_row,
                    const IsSet& is_set, bool has_columns = false) {
  const Shape& shape = problem.shape;
  ErrorSum sum;
  for (int32_t p = first_row; p < problem.num_tokens; p += 97) {
    for (const int32_t head : {0, 1, shape.q_heads - 1}) {
      const int32_t kv_head = head / shape.group();
      std::vector<int32_t> columns;
      if (has_columns) columns = columns_of(problem, kv_head, p / kSegmentTokens);
      std::vector<int32_t> tokens = tokens_before(p + 1);
      std::erase_if(tokens, [&](int32_t token) {
        return !is_set(kv_head, p / kMaskTileTokens, token / kMaskTileTokens) &&
               !std::ranges::binary_search(columns, token);
      });
      sum.add(out.data() + int64_t{(p - first_row) * shape.q_heads + head} * shape.head_dim,
              attended(problem, p, head, tokens));
    }
  }
  return sum.relative();
}

constexpr int32_t kMaskedLengths[] = {257, 3 * 256 + 7, 5 * 256 - 1};

TEST(ZoneMasksTest, MatchTheFormula) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : kMaskedLengths) {
      const Problem problem = random_problem(shape, n, {});
      for (const uint32_t one_of : {2, 6}) {
        SCOPED_TRACE(fmt::format("{}, {} tokens, one of {}", shape.name(), n, one_of));
        const IsSet tiles = random_tiles(one_of);
        EXPECT_LT(masked_error(problem, run_masked(problem, 0, &tiles), 0, tiles),
                  tolerance_of(shape));
      }
    }
  }
}

TEST(ZoneMasksTest, CutsAndRowsChangeNoBit) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name());
    const Problem problem = random_problem(shape, 4 * 256 + 40, {});
    const IsSet tiles = random_tiles(3);
    const std::vector<uint16_t> whole = bits_of(run_masked(problem, 0, &tiles));
    EXPECT_EQ(bits_of(run_masked(problem, 0, &tiles, {256, 768})), whole);
    for (const int32_t first : {128, 256, 640, 1024}) {
      EXPECT_EQ(bits_of(run_masked(problem, first, &tiles, {512})),
                std::vector(whole.begin() + first * shape.row(), whole.end()))
          << "rows from " << first;
    }
  }
}

TEST(ZoneMasksTest, AMaskOfAllTilesIsNoMask) {
  for (const Shape& shape : shapes()) {
    for (const int32_t n : kMaskedLengths) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      const Problem problem = random_problem(shape, n, {});
      const IsSet all = [](int32_t, int32_t, int32_t) { return true; };
      EXPECT_EQ(bits_of(run_masked(problem, 0, &all)), bits_of(run_masked(problem, 0, nullptr)));
    }
  }
}

// Shapes whose columns are attended to with the queries of their zones.
std::vector<Shape> column_shapes() {
  std::vector<Shape> all = shapes();
  std::erase_if(all, [](const Shape& shape) { return shape.element != KvElement::kBFloat16; });
  return all;
}

TEST(ZoneColumnsTest, MatchTheFormula) {
  for (const Shape& shape : column_shapes()) {
    for (const int32_t n : kMaskedLengths) {
      SCOPED_TRACE(fmt::format("{}, {} tokens", shape.name(), n));
      const Problem problem = random_problem(shape, n, {});
      const IsSet tiles = random_tiles(6);
      EXPECT_LT(masked_error(problem, run_masked(problem, 0, &tiles, {}, true), 0, tiles, true),
                tolerance_of(shape));
    }
  }
}

TEST(ZoneColumnsTest, CutsAndRowsChangeNoBit) {
  for (const Shape& shape : column_shapes()) {
    SCOPED_TRACE(shape.name());
    const Problem problem = random_problem(shape, 4 * 256 + 40, {});
    const IsSet tiles = random_tiles(3);
    const std::vector<uint16_t> whole = bits_of(run_masked(problem, 0, &tiles, {}, true));
    EXPECT_EQ(bits_of(run_masked(problem, 0, &tiles, {256, 768}, true)), whole);
    for (const int32_t first : {256, 512, 1024}) {
      EXPECT_EQ(bits_of(run_masked(problem, first, &tiles, {512}, true)),
                std::vector(whole.begin() + first * shape.row(), whole.end()))
          << "rows from " << first;
    }
  }
}

}  // namespace
}  // namespace sluice::testing
