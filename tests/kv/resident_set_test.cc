// ResidentSet: which blocks keep a copy on the device, and which are evicted.
#include "kv/resident_set.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

class ResidentSetTest : public ::testing::Test {
 protected:
  static ResidentSet make(int32_t num_places) { return ResidentSet(num_places, 100); }

  static PlaceId keep(ResidentSet& set, int32_t id, bool begins_sequence = false) {
    const PlaceId place = set.admit(BlockId(id), begins_sequence);
    set.complete(BlockId(id));
    return place;
  }
};

TEST_F(ResidentSetTest, WithoutPlacesItKeepsNothing) {
  ResidentSet set = make(0);
  EXPECT_FALSE(keep(set, 1).valid());
  EXPECT_FALSE(set.find(BlockId(1)).valid());
  set.remove(BlockId(1));
}

TEST_F(ResidentSetTest, ABlockIsFoundOnceItsCopyIsComplete) {
  ResidentSet set = make(2);
  const PlaceId place = set.admit(BlockId(7), false);
  ASSERT_TRUE(place.valid());
  EXPECT_FALSE(set.find(BlockId(7)).valid());
  EXPECT_EQ(set.place_of(BlockId(7)), place);
  set.complete(BlockId(7));
  EXPECT_EQ(set.find(BlockId(7)), place);
}

TEST_F(ResidentSetTest, TheOldestThatBeginsNoSequenceMakesRoom) {
  ResidentSet set = make(3);
  keep(set, 0, true);
  const PlaceId place = keep(set, 1);
  keep(set, 2);
  EXPECT_EQ(keep(set, 3), place) << "of block 1";
  EXPECT_TRUE(set.find(BlockId(0)).valid());
  EXPECT_FALSE(set.find(BlockId(1)).valid());
  EXPECT_TRUE(set.find(BlockId(2)).valid());
  EXPECT_TRUE(set.find(BlockId(3)).valid());
}

TEST_F(ResidentSetTest, WhereAllBeginSequencesTheOldestGoes) {
  ResidentSet set = make(2);
  keep(set, 0, true);
  keep(set, 1, true);
  keep(set, 2, true);
  EXPECT_FALSE(set.find(BlockId(0)).valid());
  EXPECT_TRUE(set.find(BlockId(1)).valid());
  EXPECT_TRUE(set.find(BlockId(2)).valid());
}

TEST_F(ResidentSetTest, ABlockWrittenAgainHasOnePlace) {
  ResidentSet set = make(2);
  keep(set, 5);
  keep(set, 6);
  set.admit(BlockId(5), false);
  EXPECT_FALSE(set.find(BlockId(5)).valid()) << "its new copy is not complete";
  EXPECT_TRUE(set.find(BlockId(6)).valid());
}

TEST_F(ResidentSetTest, RemovedBlocksGiveTheirPlaceBack) {
  ResidentSet set = make(1);
  const PlaceId place = keep(set, 5);
  set.remove(BlockId(5));
  EXPECT_FALSE(set.find(BlockId(5)).valid());
  EXPECT_EQ(keep(set, 6), place);
}

}  // namespace
}  // namespace sluice
