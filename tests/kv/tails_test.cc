// Tails: which sequence holds which tail, and that a tail in use is not handed out.
#include "kv/tails.h"

#include <gtest/gtest.h>

#include "support/device_hooks.h"
#include "support/test_device.h"

namespace sluice {
namespace {

class TailsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = testing::make_test_device();
  std::unique_ptr<Stream> compute_ = device_->make_stream({.name = "compute"});
  WaitGate gate_;
  Tails tails_{*device_, *compute_, gate_, 3};
};

using TailsDeathTest = TailsTest;

TEST_F(TailsTest, ASequenceFindsItsOwnTail) {
  // Not in the order of their ids: a preempted sequence comes back after newer ones.
  const TailId of_five = tails_.take(SequenceId(5));
  const TailId of_two = tails_.take(SequenceId(2));
  const TailId of_nine = tails_.take(SequenceId(9));
  EXPECT_EQ(tails_.find(SequenceId(2)), of_two);
  EXPECT_EQ(tails_.find(SequenceId(5)), of_five);
  EXPECT_EQ(tails_.find(SequenceId(9)), of_nine);
  EXPECT_FALSE(tails_.find(SequenceId(3)).valid());
  EXPECT_EQ(tails_.num_free(), 0);
}

TEST_F(TailsTest, WhatIsGivenBackIsUsedLast) {
  const TailId first = tails_.take(SequenceId(1));
  tails_.give_back(SequenceId(1));
  EXPECT_FALSE(tails_.find(SequenceId(1)).valid());
  EXPECT_NE(tails_.take(SequenceId(2)), first);
  EXPECT_NE(tails_.take(SequenceId(3)), first);
  EXPECT_EQ(tails_.take(SequenceId(4)), first);
}

TEST_F(TailsTest, GivingBackNothingChangesNothing) {
  tails_.take(SequenceId(1));
  tails_.give_back(SequenceId(2));
  EXPECT_EQ(tails_.num_free(), 2);
  tails_.give_back(SequenceId(1));
  tails_.give_back(SequenceId(1));
  EXPECT_EQ(tails_.num_free(), 3);
}

// One wait for each take: it protects the last block, which may still be on its way to the host.
TEST_F(TailsTest, EveryTakeWaitsForTheWriteBack) {
  for (int round = 1; round <= 5; ++round) {
    tails_.take(SequenceId(1));
    EXPECT_EQ(gate_.num_waits(WaitKind::kTailLeft), round);
    tails_.give_back(SequenceId(1));
  }
}

// Draft rows past a block border: the full first tail leaves, the second one takes its place.
TEST_F(TailsTest, FurtherTailsFollowTheFirst) {
  const TailId other = tails_.take(SequenceId(7));
  const TailId first = tails_.take(SequenceId(6));
  const TailId second = tails_.take(SequenceId(6));
  EXPECT_EQ(tails_.find(SequenceId(6)), first);
  EXPECT_EQ(tails_.find(SequenceId(6), 1), second);
  EXPECT_FALSE(tails_.find(SequenceId(6), 2).valid());
  EXPECT_FALSE(tails_.find(SequenceId(7), 1).valid());
  tails_.give_back(SequenceId(6));
  EXPECT_EQ(tails_.find(SequenceId(6)), second);
  tails_.take(SequenceId(6));
  tails_.give_back_from(SequenceId(6), 1);
  EXPECT_EQ(tails_.find(SequenceId(6)), second);
  EXPECT_FALSE(tails_.find(SequenceId(6), 1).valid());
  tails_.give_back_from(SequenceId(6), 0);
  EXPECT_EQ(tails_.find(SequenceId(7)), other);
  EXPECT_EQ(tails_.num_free(), 2);
}

TEST_F(TailsDeathTest, NoMoreTailsThanThereAre) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a CUDA context does not survive a fork
  for (int i = 0; i < 3; ++i) tails_.take(SequenceId(6));
  EXPECT_DEATH(tails_.take(SequenceId(6)), "all 3 tails are taken");
}

}  // namespace
}  // namespace sluice
