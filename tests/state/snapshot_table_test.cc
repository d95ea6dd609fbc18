// Which snapshot goes when there is no place for a new one.
#include "state/snapshot_table.h"

#include <set>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// Enters a chain after `before`; prefixes are named by their number of tokens, plus `base`.
void add_chain(SnapshotTable& table, int64_t base, int64_t before,
               std::initializer_list<int64_t> lengths) {
  for (const int64_t num_tokens : lengths) {
    ASSERT_TRUE(table.add(base + num_tokens, before, num_tokens).valid());
    before = base + num_tokens;
  }
}

std::set<int64_t> found(const SnapshotTable& table, std::initializer_list<int64_t> prefixes) {
  std::set<int64_t> result;
  for (const int64_t prefix : prefixes) {
    if (table.contains(prefix)) result.insert(prefix);
  }
  return result;
}

using Prefixes = std::set<int64_t>;

TEST(SnapshotTable, GivesEachPrefixAPlaceOfItsOwn) {
  SnapshotTable table(3);
  add_chain(table, 0, 0, {10, 20, 30});
  std::set<SnapshotId> places;
  for (const int64_t prefix : {10, 20, 30}) places.insert(table.find(prefix));
  EXPECT_EQ(places, (std::set{SnapshotId(0), SnapshotId(1), SnapshotId(2)}));
  EXPECT_FALSE(table.find(40).valid());
  table.drop(40);  // it has none
  const SnapshotId second = table.find(20);
  table.drop(20);
  EXPECT_EQ(table.size(), 2);
  EXPECT_EQ(table.add(40, 30, 40), second);
  EXPECT_EQ(table.num_evicted(), 0);
}

TEST(SnapshotTable, ThinsWhereAChainIsDensestAndKeepsItsDeepest) {
  SnapshotTable table(5);
  add_chain(table, 0, 0, {100, 200, 290, 300, 400});
  add_chain(table, 0, 400, {500});
  EXPECT_EQ(found(table, {100, 200, 290, 300, 400, 500}), (Prefixes{100, 200, 300, 400, 500}));
  // Of equal gaps the first.
  add_chain(table, 0, 500, {600, 700, 800});
  EXPECT_EQ(found(table, {100, 200, 300, 400, 500, 600, 700, 800}),
            (Prefixes{200, 400, 600, 700, 800}));
  EXPECT_EQ(table.size(), 5);
  EXPECT_EQ(table.num_evicted(), 4);
}

TEST(SnapshotTable, TheChainUsedLongestAgoGoesFirst) {
  SnapshotTable table(4);
  add_chain(table, 1000, 0, {10, 20});
  add_chain(table, 2000, 0, {10, 20});
  table.use(1010);  // an inner one counts for its chain
  add_chain(table, 3000, 0, {10});
  EXPECT_EQ(found(table, {1010, 1020, 2010, 2020}), (Prefixes{1010, 1020, 2020}));
  add_chain(table, 3000, 3010, {20});
  EXPECT_EQ(found(table, {1010, 1020, 2020}), (Prefixes{1010, 1020})) << "its deepest goes last";
  add_chain(table, 4000, 0, {10, 20, 30});
  EXPECT_EQ(found(table, {1010, 1020, 3010, 3020}), Prefixes{3020});
}

// What two texts begin with belongs to neither alone.
TEST(SnapshotTable, ABranchOutlivesItsChains) {
  SnapshotTable table(4);
  add_chain(table, 0, 0, {50});
  add_chain(table, 1000, 50, {60, 70});
  add_chain(table, 2000, 50, {90});
  add_chain(table, 3000, 0, {10, 20});
  EXPECT_EQ(found(table, {50, 1060, 1070, 2090}), (Prefixes{50, 2090}));
  // The beginning is now of one chain, and its only inner one.
  add_chain(table, 3000, 3020, {30});
  EXPECT_EQ(found(table, {50, 2090}), Prefixes{2090});
}

TEST(SnapshotTable, HeldOnesStay) {
  SnapshotTable table(2);
  add_chain(table, 0, 0, {10, 20});
  table.hold(10);
  table.hold(20);
  EXPECT_FALSE(table.add(30, 20, 30).valid());
  EXPECT_FALSE(table.contains(30));
  EXPECT_FALSE(table.is_loose(20));
  EXPECT_DEATH(table.drop(20), "the snapshot of prefix 20 is held");
  table.unhold(20);
  EXPECT_TRUE(table.is_loose(20)) << "the attempt left nothing after it";
  EXPECT_TRUE(table.add(30, 20, 30).valid());
  EXPECT_EQ(found(table, {10, 20, 30}), (Prefixes{10, 30}));
}

TEST(SnapshotTable, WithoutPlacesNothingIsKept) {
  SnapshotTable table(0);
  EXPECT_FALSE(table.add(10, 0, 10).valid());
  EXPECT_EQ(table.size(), 0);
}

}  // namespace
}  // namespace sluice
