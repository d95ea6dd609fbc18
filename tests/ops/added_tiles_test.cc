// add_tiles against its definition, bit by bit.
//
// Reveals: tiles above the diagonal, counts of bits that were set before, entries of other rows,
// words after the first.
#include "ops/added_tiles.h"

#include <bit>

#include <gtest/gtest.h>

#include "scored_text.h"

namespace sluice::testing {
namespace {

constexpr int32_t kFirstTile = 30, kEntries = 10, kWords = 2, kLists = 3;
constexpr int32_t kEnd = 38 * kTile + 7;  // entry 9 has no rows

std::vector<int32_t> random_words(uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> words(kLists * kEntries * kWords);
  for (int32_t& word : words) word = static_cast<int32_t>(generator() & generator());
  return words;
}

bool bit_of(const std::vector<int32_t>& words, int32_t entry, int32_t tile) {
  const auto word = static_cast<uint32_t>(words[static_cast<size_t>(entry * kWords + tile / 32)]);
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
  const int32_t first_pos = kFirstTile * kTile;
  AddTilesArgs args{
      .lists = machine.tensor(lists, {kLists, 3}),
      .batch = {.row_begin = machine.tensor(std::vector<int32_t>{5, 5 + kEnd - first_pos}, {2}),
                .first_pos = machine.tensor(std::vector<int32_t>{first_pos}, {1})},
      .rows = rows,
      .mask = {.bits = machine.tensor(before, {1, kLists, kEntries, kWords}),
               .first_q_tile = kFirstTile},
      .counts = machine.tensor(std::vector<int64_t>{4, 5, 6}, {3})};
  if (has_other) {
    args.other = {.bits = machine.tensor(other, {1, kLists, kEntries, kWords}),
                  .first_q_tile = kFirstTile};
  }
  add_tiles(machine.stream(), args);
  machine.synchronize();
  const std::vector<int32_t> after = values_of<int32_t>(args.mask.bits);
  int64_t num_new = 0;
  for (int32_t entry = 0; entry < kLists * kEntries; ++entry) {
    const int32_t q_tile = kFirstTile + entry % kEntries;
    const int32_t row = (q_tile - kFirstTile) * kTile;
    const bool is_mine = row >= rows.first && row < rows.first + rows.count;
    const int32_t* own = lists.data() + entry / kEntries * 3;
    for (int32_t tile = 0; tile < 32 * kWords; ++tile) {
      const bool is_named = tile * kTile < own[0] || in_window(own[1], q_tile, tile) ||
                            (has_other && own[2] != 0 && bit_of(other, entry, tile));
      const bool is_new = is_named && is_mine && tile <= q_tile && q_tile * kTile < kEnd;
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
      expect_added(lists, has_other, {.first = 0, .count = kEntries * kTile});
      expect_added(lists, has_other, {.first = 2 * kTile, .count = 3 * kTile - 5});
    }
  }
}

TEST(AddTiles, NamesTheRuleThatIsBroken) {
  Machine machine;
  const TensorView bits = machine.tensor(DType::kI32, {1, kLists, kEntries, kWords});
  AddTilesArgs args{.lists = machine.tensor(DType::kI32, {kLists, 3}),
                    .other = {.bits = bits, .first_q_tile = kFirstTile + 1},
                    .batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, kTile}, {2}),
                              .first_pos = machine.tensor(std::vector<int32_t>{0}, {1})},
                    .rows = {.first = 0, .count = kTile},
                    .mask = {.bits = bits, .first_q_tile = kFirstTile},
                    .counts = machine.tensor(DType::kI64, {3})};
  EXPECT_DEATH(add_tiles(machine.stream(), args), "other must begin where mask begins");
  args.rows.count = (kEntries + 1) * kTile;
  EXPECT_DEATH(add_tiles(machine.stream(), args), "an entry for every query tile");
}

}  // namespace
}  // namespace sluice::testing
