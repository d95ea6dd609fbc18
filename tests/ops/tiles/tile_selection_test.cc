// score_tiles and select_tiles against the double-precision references, on every device; add_tiles
// against its definition, bit by bit.
//
// Reveals: sums in another order per ISA, runs that do not add up, masses of the wrong heads, bits
// above the diagonal or of rows that do not exist.
#include "ops/reference/tile_selection.h"

#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "ops/tiles/tile_check.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;

const TileProbes kProbes[] = {
    {.rows_per_tile = 1},
    {.rows_per_tile = 4},
    {.rows_per_tile = 16},
    {.kind = TileProbeKind::kAntidiagonal, .stride = 8},
    {.kind = TileProbeKind::kAntidiagonal, .stride = 32},
    {.kind = TileProbeKind::kPooled},
    {.kind = TileProbeKind::kPooled, .key_pool_tokens = 64, .query_pool_tokens = 16},
    {.kind = TileProbeKind::kPooled, .query_pool_tokens = 1, .pools_maxima = true},
    {.kind = TileProbeKind::kPooled, .rows_per_tile = 2, .query_pool_tokens = 0},
};

TEST(ScoreTiles, MatchesTheReference) {
  for (const TileProbes& probes : kProbes) {
    SCOPED_TRACE(describe(probes));
    for (const int32_t num_tokens : {2 * kTile, 2 * kTile + 1, 3 * kTile - 1, 3 * kTile + 70}) {
      Machine machine;
      const PlantedText text = PlantedText::random(num_tokens, 5, 2, 3);
      const ScoreTilesArgs args = text.call(machine, probes, kTile);
      score(machine, args);
      expect_records_match(args, reference::score_tiles(args));
    }
  }
}

TEST(ScoreTiles, EveryIsaGivesTheSameBits) {
  for (const TileProbes& probes : kProbes) {
    SCOPED_TRACE(describe(probes));
    Machine machine;
    const ScoreTilesArgs args = PlantedText::random(3 * kTile + 9, 6, 1, 2).call(machine, probes);
    score(machine, args, CpuIsa::kScalar);
    const std::vector<std::byte> base = bytes_of(args.records);
    for (const CpuIsa isa : runnable_isas()) {
      score(machine, args, isa);
      EXPECT_EQ(bytes_of(args.records), base) << static_cast<int>(isa);
    }
  }
}

// Each run writes its own tiles, in any order; blocks may be smaller or larger than a tile.
TEST(ScoreTiles, RunsAndBlocksChangeNothing) {
  for (const TileProbes& probes : kProbes) {
    SCOPED_TRACE(describe(probes));
    Machine machine;
    const PlantedText text = PlantedText::random(5 * kTile + 3, 8);
    const ScoreTilesArgs whole = text.call(machine, probes, kTile);
    score(machine, whole);
    for (const int32_t block_tokens : {64, 128, 256}) {
      const ScoreTilesArgs all = text.call(machine, probes, kTile, block_tokens);
      for (const int32_t begin : {2 * kTile, 0, 4 * kTile}) {
        ScoreTilesArgs run = all;
        run.kv_begin = machine.tensor(std::vector<int32_t>{begin}, {1});
        run.kv_end = machine.tensor(
            std::vector<int32_t>{std::min(begin + 2 * kTile, text.num_tokens())}, {1});
        const int64_t first = begin / block_tokens;
        const int64_t num_blocks = all.block_table.dim(1) - first;
        run.block_table =
            TensorView(all.block_table.bytes() + first * 4, DType::kI32, {1, num_blocks});
        score(machine, run);
      }
      EXPECT_EQ(bytes_of(all.records), bytes_of(whole.records)) << block_tokens;
    }
  }
}

// A pass in windows of rows: the records and the mask are those of all rows at once.
TEST(ScoreTiles, WindowsOfRowsChangeNothing) {
  for (const TileProbes& probes : kProbes) {
    SCOPED_TRACE(describe(probes));
    Machine machine;
    const PlantedText text = PlantedText::random(7 * kTile + 30, 10, 2, 2);
    const ScoreTilesArgs whole = text.call(machine, probes, 2 * kTile);
    score(machine, whole);
    const TileRule rule{.choice = TileChoice::kTop, .top_tiles = 2, .tail_tokens = 0};
    const auto new_mask = [&] {
      return TileMask{.bits = machine.tensor(DType::kI32, {1, 2, 6, 1}), .first_q_tile = 2};
    };
    const TensorView counts = machine.tensor(std::vector<int64_t>{0, 0, 0}, {3});
    const TileMask expected = new_mask();
    const int32_t per_tile = probes_per_tile(probes);
    const auto select_rows = [&](const ScoreTilesArgs& args, const TileMask& mask) {
      select_tiles(machine.stream(), {.records = args.records,
                                      .probes_per_tile = per_tile,
                                      .batch = args.batch,
                                      .rows = args.rows,
                                      .prompt_end = text.num_tokens(),
                                      .rule = rule,
                                      .mask = mask,
                                      .counts = counts});
      machine.synchronize();
    };
    select_rows(whole, expected);
    const TileMask mask = new_mask();
    for (const TileRows rows :
         {TileRows{0, 2 * kTile}, TileRows{2 * kTile, 3 * kTile}, TileRows{5 * kTile, 30}}) {
      ScoreTilesArgs part = whole;
      const int64_t num_probes = int64_t{rows.num_q_tiles()} * per_tile;
      part.rows = rows;
      part.vectors =
          machine.tensor(DType::kBF16, {text.num_q_heads(), num_probes, whole.vectors.dim(2)});
      part.records =
          machine.tensor(DType::kF32, {text.num_q_heads(), num_probes, whole.records.dim(2)});
      score(machine, part);
      select_rows(part, mask);
    }
    EXPECT_EQ(values_of<int32_t>(mask.bits), values_of<int32_t>(expected.bits));
  }
}

// Blocks are NaN from the last key on (PlantedText), so a read beyond it would reach a record; and
// with threads the same bits.
TEST(ScoreTiles, ThreadsChangeNothing) {
  Machine alone(1);
  Machine team(4);
  const PlantedText text = PlantedText::random(3 * kTile + 1, 9, 2, 2);
  const ScoreTilesArgs args = text.call(alone, kProbes[1]);
  const ScoreTilesArgs shared = text.call(team, kProbes[1]);
  score(alone, args);
  score(team, shared);
  EXPECT_EQ(bytes_of(args.records), bytes_of(shared.records));
}

// ---- select_tiles ------------------------------------------------------------------------------

struct Selected {
  std::vector<int32_t> words;
  std::vector<int64_t> counts;
};

Selected select(Machine& machine, const ScoreTilesArgs& scored, const TileRule& rule,
                int32_t num_list_heads, int64_t prompt_end) {
  const int32_t per_tile = probes_per_tile(scored.probes);
  const int64_t num_q_tiles = scored.records.dim(1) / per_tile;
  SelectTilesArgs args{.records = scored.records,
                       .probes_per_tile = per_tile,
                       .batch = scored.batch,
                       .rows = scored.rows,
                       .prompt_end = prompt_end,
                       .rule = rule};
  args.mask = {.bits = machine.tensor(DType::kI32, {1, num_list_heads, num_q_tiles, 1}),
               .first_q_tile = scored.batch.first_pos.data<int32_t>()[0] / kTile};
  args.counts = machine.tensor(std::vector<int64_t>{10, 20, 30}, {3});
  select_tiles(machine.stream(), args);
  machine.synchronize();
  return {values_of<int32_t>(args.mask.bits), values_of<int64_t>(args.counts)};
}

// The masks of the references from the records of the op.
std::vector<int32_t> expected_words(const ScoreTilesArgs& scored, const TileRule& rule,
                                    int32_t num_list_heads, int64_t prompt_end) {
  std::vector<double> records;
  for (const float record : values_of<float>(scored.records)) records.push_back(record);
  const int32_t per_tile = probes_per_tile(scored.probes);
  return reference::mask_words(
      records,
      {.num_q_heads = static_cast<int32_t>(scored.records.dim(0)),
       .num_kv_heads = num_list_heads,
       .num_q_tiles = static_cast<int32_t>(scored.records.dim(1) / per_tile),
       .probes_per_tile = per_tile,
       .num_kv_tiles = static_cast<int32_t>(scored.records.dim(2))},
      rule, scored.batch.first_pos.data<int32_t>()[0] / kTile, prompt_end);
}

TEST(SelectTiles, TakesTheTilesOfTheRule) {
  const TileRule rules[] = {
      {.share = kMassOne / 10 * 6, .recent_tokens = 0, .tail_tokens = 0},
      {.choice = TileChoice::kTop, .top_tiles = 2, .tail_tokens = 0},
      {.choice = TileChoice::kAlpha, .share = kMassOne / 3, .tail_tokens = 100}};
  for (const TileProbes& probes : {kProbes[1], kProbes[3], kProbes[5]}) {
    for (const TileRule& rule : rules) {
      for (const int32_t num_list_heads : {1, 2}) {
        Machine machine;
        const PlantedText text = PlantedText::random(9 * kTile + 20, 12, 2, 2);
        const ScoreTilesArgs args = text.call(machine, probes, 2 * kTile);
        score(machine, args);
        const Selected selected = select(machine, args, rule, num_list_heads, text.num_tokens());
        EXPECT_EQ(selected.words, expected_words(args, rule, num_list_heads, text.num_tokens()))
            << describe(probes) << ", choice " << static_cast<int>(rule.choice);
        int64_t num_set = 0;
        for (const int32_t word : selected.words)
          num_set += std::popcount(static_cast<uint32_t>(word));
        EXPECT_EQ(selected.counts[0], 10 + num_set) << "counts are added";
        // Query tiles 2 to 9 see 3 to 10 tiles.
        EXPECT_EQ(selected.counts[1], 20 + num_list_heads * (3 + 10) * 8 / 2);
      }
    }
  }
}

// A later span of a prompt: the tail is that of the prompt, and query tiles beyond the rows of a
// shorter sequence of the pass stay 0.
TEST(SelectTiles, KnowsThePromptsEndAndItsRows) {
  Machine machine;
  const PlantedText text = PlantedText::random(4 * kTile, 13);
  ScoreTilesArgs args = text.call(machine, kProbes[1], 2 * kTile);
  score(machine, args);
  const TileRule rule{.choice = TileChoice::kTop, .recent_tokens = 0, .tail_tokens = 1};
  EXPECT_EQ(select(machine, args, rule, 1, 4 * kTile + 1).words, (std::vector<int32_t>{5, 9}));
  EXPECT_EQ(select(machine, args, rule, 1, 4 * kTile).words, (std::vector<int32_t>{5, 15}));
  args.batch.row_begin = machine.tensor(std::vector<int32_t>{0, kTile}, {2});
  EXPECT_EQ(select(machine, args, rule, 1, 9 * kTile).words, (std::vector<int32_t>{5, 0}));
}

TEST(SelectTiles, ProbesThatAreNotFiniteCountForNothing) {
  Machine machine;
  const PlantedText text = PlantedText::random(4 * kTile, 14);
  const ScoreTilesArgs args = text.call(machine, kProbes[1], 3 * kTile);
  score(machine, args);
  const TileRule rule{
      .choice = TileChoice::kTop, .top_tiles = 1, .recent_tokens = 0, .tail_tokens = 0};
  const Selected clean = select(machine, args, rule, 1, 1 << 20);
  auto* records = args.records.data<float>();
  for (int32_t j = 0; j < 4; ++j) records[j] = std::numeric_limits<float>::quiet_NaN();
  const int32_t chosen = clean.words[0] & ~9;  // beside sink and diagonal
  ASSERT_EQ(std::popcount(static_cast<uint32_t>(chosen)), 1);
  for (int32_t probe = 1; probe < 4; ++probe) records[probe * 4 + (chosen == 2 ? 2 : 1)] += 50;
  EXPECT_EQ(select(machine, args, rule, 1, 1 << 20).words[0], chosen == 2 ? 13 : 11)
      << "the other tile, by the other three";
  std::fill_n(records, 16, std::numeric_limits<float>::infinity());
  EXPECT_EQ(select(machine, args, rule, 1, 1 << 20).words[0], 15) << "everything";
}

TEST(TileSelectionContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  const PlantedText text = PlantedText::random(2 * kTile, 15);
  ScoreTilesArgs args = text.call(machine, {.rows_per_tile = 4});
  args.probes.rows_per_tile = 3;
  EXPECT_DEATH(score_tiles(machine.stream(), args), "rows_per_tile must be 1, 2, 4, 8 or 16");
  args.probes = {.kind = TileProbeKind::kAntidiagonal, .stride = 12};
  EXPECT_DEATH(score_tiles(machine.stream(), args), "stride must be 4, 8, 16 or 32");
  args = text.call(machine, {.kind = TileProbeKind::kPooled, .key_pool_tokens = 128}, 0, 128);
  args.kv.shape.block_tokens = 64;
  EXPECT_DEATH(score_tiles(machine.stream(), args), "must divide block_tokens");
}

// ---- add_tiles ---------------------------------------------------------------------------------

constexpr int32_t kAddFirst = 30, kAddEntries = 10, kAddWords = 2, kAddLists = 3;
constexpr int32_t kAddEnd = 38 * kTile + 7;  // entry 9 has no rows

std::vector<int32_t> random_words(uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> words(kAddLists * kAddEntries * kAddWords);
  for (int32_t& word : words) word = static_cast<int32_t>(generator() & generator());
  return words;
}

bool bit_of(const std::vector<int32_t>& words, int32_t entry, int32_t tile) {
  const auto word =
      static_cast<uint32_t>(words[static_cast<size_t>(entry * kAddWords + tile / 32)]);
  return (word >> (tile % 32) & 1) != 0;
}

// Whether a row of the query tile is at most `recent` tokens after a token of the KV tile.
bool in_window(int32_t recent, int32_t q_tile, int32_t tile) {
  for (int32_t token = tile * kTile; token < (tile + 1) * kTile; ++token) {
    if (recent >= 0 && token >= q_tile * kTile - recent) return true;
  }
  return false;
}

void expect_added(const std::vector<int32_t>& lists, bool has_other, const TileRows& rows) {
  Machine machine;
  const std::vector<int32_t> before = random_words(1), other = random_words(2);
  const int32_t first_pos = kAddFirst * kTile;
  AddTilesArgs args{
      .lists = machine.tensor(lists, {kAddLists, 3}),
      .batch = {.row_begin = machine.tensor(std::vector<int32_t>{5, 5 + kAddEnd - first_pos}, {2}),
                .first_pos = machine.tensor(std::vector<int32_t>{first_pos}, {1})},
      .rows = rows,
      .mask = {.bits = machine.tensor(before, {1, kAddLists, kAddEntries, kAddWords}),
               .first_q_tile = kAddFirst},
      .counts = machine.tensor(std::vector<int64_t>{4, 5, 6}, {3})};
  if (has_other) {
    args.other = {.bits = machine.tensor(other, {1, kAddLists, kAddEntries, kAddWords}),
                  .first_q_tile = kAddFirst};
  }
  add_tiles(machine.stream(), args);
  machine.synchronize();
  const std::vector<int32_t> after = values_of<int32_t>(args.mask.bits);
  int64_t num_new = 0;
  for (int32_t entry = 0; entry < kAddLists * kAddEntries; ++entry) {
    const int32_t q_tile = kAddFirst + entry % kAddEntries;
    const int32_t row = (q_tile - kAddFirst) * kTile;
    const bool is_mine = row >= rows.first && row < rows.first + rows.count;
    const int32_t* own = lists.data() + entry / kAddEntries * 3;
    for (int32_t tile = 0; tile < 32 * kAddWords; ++tile) {
      const bool is_named = tile * kTile < own[0] || in_window(own[1], q_tile, tile) ||
                            (has_other && own[2] != 0 && bit_of(other, entry, tile));
      const bool is_new = is_named && is_mine && tile <= q_tile && q_tile * kTile < kAddEnd;
      num_new += is_new && !bit_of(before, entry, tile) ? 1 : 0;
      ASSERT_EQ(bit_of(after, entry, tile), is_new || bit_of(before, entry, tile))
          << "entry " << entry << " tile " << tile;
    }
  }
  EXPECT_EQ(values_of<int64_t>(args.counts), (std::vector<int64_t>{4 + num_new, 5, 6}));
}

TEST(AddTiles, AddsSinksWindowsAndOtherTiles) {
  const std::vector<int32_t> kinds[] = {{0, -1, 0, 0, -1, 1, 0, 0, 0},
                                        {1, 127, 1, 128, 128, 0, 129, 129, 1},
                                        {5000, 0, 0, 0, 5000, 0, 1 << 30, 1 << 30, 1}};
  for (const std::vector<int32_t>& lists : kinds) {
    for (const bool has_other : {false, true}) {
      expect_added(lists, has_other, {.first = 0, .count = kAddEntries * kTile});
      expect_added(lists, has_other, {.first = 2 * kTile, .count = 3 * kTile - 5});
    }
  }
}

TEST(AddTilesContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  const TensorView bits = machine.tensor(DType::kI32, {1, kAddLists, kAddEntries, kAddWords});
  AddTilesArgs args{.lists = machine.tensor(DType::kI32, {kAddLists, 3}),
                    .other = {.bits = bits, .first_q_tile = kAddFirst + 1},
                    .batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, kTile}, {2}),
                              .first_pos = machine.tensor(std::vector<int32_t>{0}, {1})},
                    .rows = {.first = 0, .count = kTile},
                    .mask = {.bits = bits, .first_q_tile = kAddFirst},
                    .counts = machine.tensor(DType::kI64, {3})};
  EXPECT_DEATH(add_tiles(machine.stream(), args), "other must begin where mask begins");
  args.rows.count = (kAddEntries + 1) * kTile;
  EXPECT_DEATH(add_tiles(machine.stream(), args), "an entry for every query tile");
}

}  // namespace
}  // namespace sluice::testing
