// audit_mass against the double-precision reference, which adds up single tokens, and on texts
// whose captured mass follows from counts.
//
// Reveals: rows that a policy probed, masks of the wrong head or tile, columns counted twice, runs
// and parts that do not add up, rows that do not exist.
#include "ops/tiles/audit_mass.h"

#include <cmath>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "ops/reference/audit_mass.h"
#include "planted_text.h"

namespace sluice::testing {
namespace {

constexpr int32_t kTile = kMaskTileTokens;

// Whether list head, query tile and KV tile have a bit.
using Bits = std::function<bool(int32_t head, int32_t q_tile, int32_t kv_tile)>;

bool everything(int32_t, int32_t, int32_t) { return true; }
// About half of the tiles, and always the diagonal.
bool some(int32_t head, int32_t q_tile, int32_t kv_tile) {
  const auto place = static_cast<uint32_t>((head * 61 + q_tile) * 67 + kv_tile);
  return kv_tile == q_tile || (place * 2654435761u >> 20) % 2 == 0;
}
bool diagonal(int32_t, int32_t q_tile, int32_t kv_tile) { return q_tile == kv_tile; }

TensorView state_of(Machine& machine, int32_t first_q_tile, int32_t num_q_tiles,
                    int64_t num_q_heads) {
  return machine.tensor(DType::kF32,
                        {num_audit_groups(first_q_tile, num_q_tiles), kAuditParts, num_q_heads, 4});
}

TensorView empty_tally(Machine& machine, int64_t num_q_heads) {
  const int64_t length = kAuditCounts + num_q_heads;
  return machine.tensor(std::vector<int64_t>(static_cast<size_t>(length)), {length});
}

// A call for all rows of `keys`, with bits below and on the diagonal.
AuditMassArgs audit_of(Machine& machine, const ScoreTilesArgs& keys, const Bits& bits,
                       int32_t num_list_heads) {
  const int32_t first_q_tile = keys.batch.first_pos.data<int32_t>()[0] / kTile;
  const int32_t num_q_tiles = keys.rows.num_q_tiles();
  const int32_t num_words = (first_q_tile + num_q_tiles + 31) / 32;
  std::vector<int32_t> words;
  for (int32_t head = 0; head < num_list_heads; ++head) {
    for (int32_t i = 0; i < num_q_tiles; ++i) {
      std::vector<uint32_t> entry(static_cast<size_t>(num_words));
      for (int32_t j = 0; j <= first_q_tile + i; ++j) {
        if (bits(head, first_q_tile + i, j)) entry[static_cast<size_t>(j / 32)] |= 1u << (j % 32);
      }
      words.insert(words.end(), entry.begin(), entry.end());
    }
  }
  return {.q = keys.q,
          .batch = keys.batch,
          .rows = keys.rows,
          .scale = keys.scale,
          .kv = keys.kv,
          .kv_begin = keys.kv_begin,
          .kv_end = keys.kv_end,
          .block_table = keys.block_table,
          .mask = {.bits = machine.tensor(words, {1, num_list_heads, num_q_tiles, num_words}),
                   .first_q_tile = first_q_tile},
          .state = state_of(machine, first_q_tile, num_q_tiles, keys.q.dim(1)),
          .tally = empty_tally(machine, keys.q.dim(1))};
}

// The same for a text from `first_pos` on.
AuditMassArgs audit_of(Machine& machine, const PlantedText& text, const Bits& bits,
                       int32_t num_list_heads, int32_t first_pos = 0) {
  return audit_of(machine, text.call(machine, {}, first_pos), bits, num_list_heads);
}

// A column every 11 tokens of a text, other ones for each list, in segments of eight tiles: before,
// in and after their rows.
TileColumns columns_of(Machine& machine, const PlantedText& text, int32_t num_list_heads,
                       int32_t first_segment = 0) {
  constexpr int32_t kMaxColumns = 256;
  const int32_t num_segments = (text.num_tokens() + 8 * kTile - 1) / (8 * kTile) - first_segment;
  std::vector<int32_t> positions, counts;
  for (int32_t list = 0; list < num_list_heads * num_segments; ++list) {
    int32_t count = 0;
    for (int32_t p = list; p < text.num_tokens(); p += 11) positions.push_back(p), ++count;
    positions.resize(static_cast<size_t>((list + 1) * kMaxColumns), -1);
    counts.push_back(count);
  }
  return {.positions = machine.tensor(positions, {num_list_heads, num_segments, kMaxColumns}),
          .count = machine.tensor(counts, {num_list_heads, num_segments}),
          .kv = {},
          .segment_tokens = 8 * kTile,
          .first_segment = first_segment};
}

std::vector<int64_t> audit(Machine& machine, const AuditMassArgs& args) {
  audit_mass(machine.stream(), args);
  machine.synchronize();
  return values_of<int64_t>(args.tally);
}

// The tally that the reference's rows give, in shares.
std::vector<double> expected_tally(const AuditMassArgs& args) {
  std::vector<double> tally(static_cast<size_t>(kAuditCounts + args.q.dim(1)));
  for (const reference::AuditedRow& row : reference::audit_mass(args)) {
    double mean = 0;
    for (const double mass : row.captured) mean += mass / static_cast<double>(args.q.dim(1));
    if (!std::isfinite(mean)) {
      ++tally[kAuditSkipped];
      continue;
    }
    ++tally[kAuditRows];
    tally[kAuditMass] += mean;
    tally[kAuditSquares] += mean * mean;
    for (size_t h = 0; h < row.captured.size(); ++h) tally[kAuditCounts + h] += row.captured[h];
  }
  return tally;
}

void expect_tally(const std::vector<int64_t>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const size_t count : {size_t{kAuditRows}, size_t{kAuditSkipped}}) {
    EXPECT_EQ(static_cast<double>(actual[count]), expected[count]) << count;
  }
  // Sums of a few hundred exponentials in f32, each of a score of 16 products.
  const double bound = 1e-5 * std::max(1.0, expected[kAuditRows]);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i == kAuditRows || i == kAuditSkipped) continue;
    EXPECT_NEAR(static_cast<double>(actual[i]) / kMassOne, expected[i], bound) << i;
  }
}

TEST(AuditMass, RowsAreOneInEveryEighthTileAndNoProbeRows) {
  std::set<int32_t> tiles, offsets;
  for (int32_t group = 0; group < 500; ++group) {
    const int32_t row = audit_row(group);
    EXPECT_EQ(row / (kTile * kAuditGroupTiles), group);
    tiles.insert(row / kTile % kAuditGroupTiles);
    offsets.insert(row % kTile);
    for (int32_t per_tile = 1; per_tile <= 16; per_tile *= 2) {
      for (int32_t i = 0; i < per_tile; ++i) {
        EXPECT_NE(probe_row(row / kTile, i, per_tile), row) << group << ", " << per_tile;
      }
    }
  }
  EXPECT_EQ(tiles.size(), 8u) << "every place of a group";
  EXPECT_GT(offsets.size(), 110u) << "and of a tile";
}

TEST(AuditMass, GroupsAreCountedAtAbsoluteTiles) {
  EXPECT_EQ(num_audit_groups(0, 0), 0);
  EXPECT_EQ(num_audit_groups(0, 1), 1);
  EXPECT_EQ(num_audit_groups(0, 8), 1);
  EXPECT_EQ(num_audit_groups(0, 9), 2);
  EXPECT_EQ(num_audit_groups(7, 2), 2);
  EXPECT_EQ(num_audit_groups(8, 8), 1);
  EXPECT_EQ(num_audit_groups(15, 18), 4);
}

TEST(AuditMass, MatchesTheReference) {
  // The second group's row exists in the first two texts, and its whole tile in the second.
  const int32_t row = audit_row(1);
  for (const int32_t num_tokens :
       {row + 1, (row / kTile + 1) * kTile, 17 * kTile - 1, 17 * kTile, 17 * kTile + 1}) {
    for (const int32_t list_heads : {1, 2}) {
      for (const int32_t first_pos : {0, 5 * kTile}) {
        SCOPED_TRACE(::testing::Message() << num_tokens << " tokens, " << list_heads << " lists, "
                                          << "from " << first_pos);
        Machine machine;
        const PlantedText text = PlantedText::random(num_tokens, 31, 2, 3);
        const AuditMassArgs args = audit_of(machine, text, some, list_heads, first_pos);
        const std::vector<double> expected = expected_tally(args);
        expect_tally(audit(machine, args), expected);
        EXPECT_EQ(expected[kAuditSkipped], 0);
        if (first_pos > 0) continue;  // may begin after the first row
        EXPECT_EQ(expected[kAuditRows], num_tokens == row + 1 ? 1 : 2);
      }
    }
  }
}

TEST(AuditMass, ReferenceHasRowsAndSharesBetweenNothingAndAll) {
  Machine machine;
  const PlantedText text = PlantedText::random(24 * kTile, 32, 2, 2);
  const auto rows = reference::audit_mass(audit_of(machine, text, some, 2));
  ASSERT_EQ(rows.size(), 3u);
  for (const reference::AuditedRow& row : rows) {
    for (const double mass : row.captured) {
      EXPECT_GT(mass, 0.1);
      EXPECT_LT(mass, 0.95);
    }
  }
}

TEST(AuditMass, EverythingIsExactlyAll) {
  for (const int32_t group : {1, 3, 7}) {
    Machine machine;
    const PlantedText text = PlantedText::random(16 * kTile + 40, 33, 2, group);
    const std::vector<int64_t> tally = audit(machine, audit_of(machine, text, everything, 2));
    EXPECT_EQ(tally[kAuditRows], 2);
    for (size_t i = 0; i < tally.size(); ++i) {
      if (i == kAuditRows || i == kAuditSkipped) continue;
      EXPECT_EQ(tally[i], 2 * int64_t{kMassOne}) << i;
    }
    const AuditedMass audited = summarize_mass(tally);
    EXPECT_EQ(audited.mean, 1.0);
    EXPECT_EQ(audited.standard_error, 0.0);
  }
}

// All keys are alike, so a row captures the share of its tokens in its diagonal tile.
TEST(AuditMass, UniformMassIsTheShareOfTokens) {
  Machine machine;
  const auto ones = [](int32_t, int32_t) { return std::vector<float>(PlantedText::kHeadDim, 1.f); };
  const PlantedText text(24 * kTile, ones, ones);
  const AuditedMass audited = summarize_mass(audit(machine, audit_of(machine, text, diagonal, 1)));
  std::vector<double> shares;
  for (int32_t group = 0; group < 3; ++group) {
    const int32_t row = audit_row(group);
    shares.push_back((row % kTile + 1.0) / (row + 1.0));
  }
  const double mean = (shares[0] + shares[1] + shares[2]) / 3;
  double spread = 0;
  for (const double share : shares) spread += (share - mean) * (share - mean);
  EXPECT_EQ(audited.num_rows, 3);
  EXPECT_NEAR(audited.mean, mean, 1e-6);
  EXPECT_NEAR(audited.standard_error, std::sqrt(spread / 3 / 2), 1e-6);
  EXPECT_NEAR(audited.of_heads[0], mean, 1e-6);
}

// A far tile that holds nearly everything, named by the mask of one KV head alone.
TEST(AuditMass, HeadsHaveTheirOwnMasks) {
  Machine machine;
  const auto queries = [](int32_t, int32_t) {
    std::vector<float> numbers(PlantedText::kHeadDim);
    numbers[3] = 8;
    return numbers;
  };
  const auto keys = [&](int32_t position, int32_t) {
    std::vector<float> numbers(PlantedText::kHeadDim);
    numbers[3] = position / kTile == 0 ? 8.0f : 0.0f;
    return numbers;
  };
  const PlantedText text(16 * kTile, queries, keys, 2, 2);
  const auto sink_of_head_1 = [](int32_t head, int32_t q_tile, int32_t kv_tile) {
    return q_tile == kv_tile || (head == 1 && kv_tile == 0);
  };
  ASSERT_GE(audit_row(0), kTile) << "a row behind the planted tile";
  const AuditedMass audited =
      summarize_mass(audit(machine, audit_of(machine, text, sink_of_head_1, 2)));
  EXPECT_LT(audited.of_heads[0], 1e-4);
  EXPECT_LT(audited.of_heads[1], 1e-4);
  EXPECT_GT(audited.of_heads[2], 0.999);
  EXPECT_GT(audited.of_heads[3], 0.999);
  EXPECT_NEAR(audited.mean, 0.5, 1e-3);
}

// More rows than a kernel takes at once, and more KV tiles than there are parts of them.
TEST(AuditMass, ManyRowsAndTilesMatchTheReference) {
  static_assert(72 > kAuditParts);
  Machine machine;
  const PlantedText text = PlantedText::random(72 * kTile + 5, 39, 1, 16);
  const AuditMassArgs args = audit_of(machine, text, some, 1);
  const std::vector<double> expected = expected_tally(args);
  EXPECT_EQ(expected[kAuditRows], 9) << "with 16 heads each";
  expect_tally(audit(machine, args), expected);
}

// The same keys in blocks that lie in the opposite order.
void reverse_blocks(Machine& machine, ScoreTilesArgs& keys) {
  const KvBlocksView from = keys.kv;
  keys.kv.base = machine.poisoned(from.stride_bytes * static_cast<size_t>(from.num_blocks));
  std::vector<int32_t> table;
  for (int32_t i = 0; i < from.num_blocks; ++i) {
    table.push_back(from.num_blocks - 1 - i);
    std::memcpy(keys.kv.block(table.back()), from.block(i), from.stride_bytes);
  }
  keys.block_table = machine.tensor(table, {1, from.num_blocks});
}

TEST(AuditMass, KeysOfAllWidthsInBlocksOfAllSizes) {
  for (const int32_t head_dim : {16, 80, 128, 256}) {
    Machine machine;
    const PlantedText text = PlantedText::random(9 * kTile + 3, 40, 2, 2, head_dim);
    std::vector<int64_t> first;
    for (const int32_t block_tokens : {16, 64, 128, 384}) {
      SCOPED_TRACE(::testing::Message() << head_dim << " elements, blocks of " << block_tokens);
      ScoreTilesArgs keys = text.call(machine, {}, 0, block_tokens);
      keys.scale = 1 / std::sqrt(static_cast<float>(head_dim));
      reverse_blocks(machine, keys);
      const AuditMassArgs args = audit_of(machine, keys, some, 2);
      const std::vector<int64_t> tally = audit(machine, args);
      if (first.empty()) {
        first = tally;
        EXPECT_GT(tally[kAuditRows], 0);
        expect_tally(tally, expected_tally(args));
      }
      EXPECT_EQ(tally, first);
    }
  }
}

// Runs cut at any tile give the bits of one run, and windows of rows those of all rows.
void expect_same_in_parts(bool has_columns) {
  Machine machine;
  const PlantedText text = PlantedText::random(20 * kTile + 9, 34, 2, 2);
  AuditMassArgs whole = audit_of(machine, text, some, 2);
  if (has_columns) whole.columns = columns_of(machine, text, 2);
  const std::vector<int64_t> expected = audit(machine, whole);
  EXPECT_EQ(expected[kAuditRows], 2);
  AuditMassArgs cut = whole;
  cut.state = state_of(machine, 0, 21, 4);
  cut.tally = empty_tally(machine, 4);
  const std::vector<int32_t> borders = {0, 3 * kTile, 4 * kTile, 11 * kTile, text.num_tokens()};
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    AuditMassArgs run = cut;
    run.kv_begin = machine.tensor(std::vector<int32_t>{borders[i]}, {1});
    run.kv_end = machine.tensor(std::vector<int32_t>{borders[i + 1]}, {1});
    const int64_t first = borders[i] / 64;  // blocks of PlantedText::call
    run.block_table = TensorView(cut.block_table.bytes() + first * 4, DType::kI32,
                                 {1, cut.block_table.dim(1) - first});
    run.first = i == 0;
    run.last = i + 2 == borders.size();
    audit(machine, run);
  }
  EXPECT_EQ(values_of<int64_t>(cut.tally), expected);
  EXPECT_EQ(bytes_of(cut.state.rows(0, 2)), bytes_of(whole.state.rows(0, 2)));

  AuditMassArgs window = whole;
  window.tally = empty_tally(machine, 4);
  for (const TileRows rows : {TileRows{0, 5 * kTile}, TileRows{5 * kTile, 6 * kTile},
                              TileRows{11 * kTile, 9 * kTile + 9}}) {
    window.rows = rows;
    window.state = state_of(machine, rows.first / kTile, rows.num_q_tiles(), 4);
    audit(machine, window);
  }
  EXPECT_EQ(values_of<int64_t>(window.tally), expected);
}

TEST(AuditMass, RunsAndWindowsChangeNothing) {
  expect_same_in_parts(false);
  expect_same_in_parts(true);
}

TEST(AuditMass, ThreadsChangeNothing) {
  Machine alone(1), team(4);
  const PlantedText text = PlantedText::random(24 * kTile, 35, 3, 2);
  EXPECT_EQ(audit(alone, audit_of(alone, text, some, 3)),
            audit(team, audit_of(team, text, some, 3)));
}

// Columns in set tiles count once, and those after the row not at all.
TEST(AuditMass, ColumnsCountInTilesThatAreNotSet) {
  for (const int32_t first_segment : {0, 1}) {
    for (const int32_t list_heads : {1, 2}) {
      Machine machine;
      const PlantedText text = PlantedText::random(16 * kTile, 36, 2, 2);
      const int32_t first_pos = first_segment * 8 * kTile;
      const int64_t num_rows = 2 - first_segment;
      AuditMassArgs args = audit_of(machine, text, some, list_heads, first_pos);
      const std::vector<int64_t> without = audit(machine, args);
      args.columns = columns_of(machine, text, list_heads, first_segment);
      args.tally = empty_tally(machine, 4);
      const std::vector<int64_t> with = audit(machine, args);
      expect_tally(with, expected_tally(args));
      EXPECT_EQ(with[kAuditRows], num_rows);
      EXPECT_GT(with[kAuditMass], without[kAuditMass]);
      args.mask = audit_of(machine, text, everything, list_heads, first_pos).mask;
      args.tally = empty_tally(machine, 4);
      EXPECT_EQ(audit(machine, args)[kAuditMass], num_rows * int64_t{kMassOne});
    }
  }
}

// A key that is not finite makes the rows that see it worthless, and no others. Of the two
// infinities one gives a score of -inf, which has no mass and does no harm.
TEST(AuditMass, RowsThatAreNotFiniteAreSkipped) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<int64_t> skipped;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    Machine machine;
    const PlantedText text = PlantedText::random(16 * kTile, 37);
    const AuditMassArgs args = audit_of(machine, text, some, 1);
    const int32_t position = audit_row(0) + 1;  // the row of group 1 sees it
    *args.kv.keys<BFloat16>(position / 64, 0, position % 64) = BFloat16(bad);
    const std::vector<int64_t> tally = audit(machine, args);
    EXPECT_EQ(tally[kAuditRows] + tally[kAuditSkipped], 2);
    expect_tally(tally, expected_tally(args));
    skipped.push_back(tally[kAuditSkipped]);
  }
  EXPECT_EQ(skipped[0], 1);
  EXPECT_EQ(skipped[1] + skipped[2], 1);
}

TEST(AuditMass, ATallyWithoutRowsHasNoMean) {
  const AuditedMass none = summarize_mass(std::vector<int64_t>(kAuditCounts + 3));
  EXPECT_EQ(none.num_rows, 0);
  EXPECT_EQ(none.mean, 0);
  EXPECT_EQ(none.of_heads, (std::vector<double>{0, 0, 0}));
  const AuditedMass one =
      summarize_mass(std::vector<int64_t>{1, kMassOne / 2, kMassOne / 4, 2, kMassOne / 2});
  EXPECT_EQ(one.mean, 0.5);
  EXPECT_EQ(one.standard_error, 0) << "one row says nothing of the spread";
  EXPECT_EQ(one.num_skipped, 2);
}

TEST(AuditMassContractDeathTest, NamesTheRuleThatIsBroken) {
  Machine machine;
  const PlantedText text = PlantedText::random(9 * kTile, 38, 2, 1);
  AuditMassArgs args = audit_of(machine, text, some, 2);
  args.state = state_of(machine, 0, 1, 2);
  EXPECT_DEATH(audit_mass(machine.stream(), args), "num_groups");
  args = audit_of(machine, text, some, 2);
  args.tally = machine.tensor(std::vector<int64_t>(3), {3});
  EXPECT_DEATH(audit_mass(machine.stream(), args), "num_counts");
  args = audit_of(machine, text, some, 2);
  args.rows.first = 64;
  EXPECT_DEATH(audit_mass(machine.stream(), args), "rows.first must be a multiple");
}

}  // namespace
}  // namespace sluice::testing
