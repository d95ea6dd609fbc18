// Seats and slots: which slot a pass reads and writes, and what a commit, a pass that is not
// committed and the end of a sequence change.
#include "state/state_pool.h"

#include <cstring>
#include <memory>
#include <set>

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr StateLayout kLayout{
    .num_layers = 3,
    .shape = {.num_k_heads = 1, .num_v_heads = 2, .k_dim = 4, .v_dim = 6, .num_taps = 4}};

class StatePoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = make_device("cpu", {.num_threads = 1});
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "test", .num_threads = 1});
  StatePool pool_{kLayout, {.num_seats = 3, .num_snapshots = 2}, *device_, *stream_};

  void TearDown() override { stream_->synchronize(); }  // the stream may still write the memory
};

TEST_F(StatePoolTest, TakesWhatItSays) {
  // Matrices of 2 x 4 x 6 numbers in f32; a window of 3 x (2 x 4 + 2 x 6) numbers in bf16.
  const size_t layer_bytes = (192 + 120 + 63) / 64 * 64;
  EXPECT_EQ(kLayout.slot_bytes(), 3 * layer_bytes);
  EXPECT_EQ(StatePool::device_bytes(kLayout, 3), 2 * 3 * 3 * layer_bytes);
  EXPECT_EQ(device_->allocated_bytes(MemoryKind::kDevice), StatePool::device_bytes(kLayout, 3));
  EXPECT_EQ(StatePool::device_bytes({}, 3), 0u);
  EXPECT_EQ(device_->allocated_bytes(MemoryKind::kPinned), 2 * kLayout.slot_bytes());
  EXPECT_EQ(StatePool::pinned_bytes(kLayout, 2), 2 * kLayout.slot_bytes());
}

TEST_F(StatePoolTest, ACommitSwapsTheSlots) {
  const SequenceId id(7);
  const StateSlots first = pool_.begin(id, 0, 5);
  EXPECT_NE(first.read, first.write);
  pool_.committed(id, 5);
  const StateSlots second = pool_.begin(id, 5, 1);
  EXPECT_EQ(second.read, first.write);
  EXPECT_EQ(second.write, first.read);
}

TEST_F(StatePoolTest, APassThatIsNotCommittedChangesNothing) {
  const SequenceId id(7);
  pool_.begin(id, 0, 5);
  pool_.committed(id, 5);
  const StateSlots given_up = pool_.begin(id, 5, 9);
  const StateSlots again = pool_.begin(id, 5, 2);
  EXPECT_EQ(again.read, given_up.read);
  EXPECT_EQ(again.write, given_up.write);
  pool_.committed(id, 7);
  EXPECT_EQ(pool_.begin(id, 7, 1).read, again.write);
}

TEST_F(StatePoolTest, SequencesHaveSlotsOfTheirOwnAndGiveThemBack) {
  std::set<int32_t> slots;
  for (int64_t i = 0; i < 3; ++i) {
    const StateSlots own = pool_.begin(SequenceId(i), 0, 1);
    slots.insert({own.read, own.write});
  }
  EXPECT_EQ(slots, (std::set<int32_t>{0, 1, 2, 3, 4, 5}));
  pool_.release(SequenceId(1));
  pool_.release(SequenceId(1));  // no seat: no effect
  EXPECT_EQ(pool_.num_used_seats(), 2);
  const StateSlots next = pool_.begin(SequenceId(9), 0, 1);
  EXPECT_EQ(pool_.num_used_seats(), 3);
  EXPECT_TRUE(slots.contains(next.read) && slots.contains(next.write));
  EXPECT_DEATH(pool_.begin(SequenceId(10), 0, 1), "no seat for sequence 10");
}

// Layers of a slot do not overlap, and slots lie one after the other.
TEST_F(StatePoolTest, LayersLieInTheirSlots) {
  const DeltaStates first = pool_.layer(0), last = pool_.layer(2);
  EXPECT_EQ(first.num_slots, 6);
  EXPECT_EQ(first.slot_bytes, kLayout.slot_bytes());
  EXPECT_EQ(static_cast<size_t>(last.base - first.base), 2 * kLayout.layer_bytes());
  EXPECT_EQ(reinterpret_cast<std::byte*>(first.matrix(1, 0)) - first.base,
            static_cast<int64_t>(kLayout.slot_bytes()));
}

TEST_F(StatePoolTest, PositionsAreChecked) {
  const SequenceId id(7);
  pool_.begin(id, 0, 5);
  EXPECT_DEATH(pool_.committed(id, 4), "4 tokens of sequence 7 are committed");
  pool_.committed(id, 5);
  EXPECT_DEATH(pool_.begin(id, 4, 1), "sequence 7 is at position 4, its state at 5");
  pool_.release(id);
  pool_.begin(id, 0, 1);  // computed again from the first token on
}

// The bytes of the slot that the next pass reads or writes.
std::byte* bytes_of(const StatePool& pool, int32_t slot) {
  const DeltaStates first = pool.layer(0);
  return first.base + static_cast<size_t>(slot) * first.slot_bytes;
}

TEST_F(StatePoolTest, ASnapshotIsTheCommittedStateAndGoesToAnySequence) {
  const SequenceId one(1), two(2);
  const StateSlots slots = pool_.begin(one, 0, 5);
  std::memset(bytes_of(pool_, slots.write), 1, kLayout.slot_bytes());
  pool_.committed(one, 5);
  pool_.save(one, SnapshotId(1));
  // The next pass is enqueued after the copy, and changes nothing of it.
  const auto layers = pool_.layers(SnapshotId(1));
  std::memset(bytes_of(pool_, pool_.begin(one, 5, 1).write), 2, kLayout.slot_bytes());
  ASSERT_EQ(std::ssize(layers), kLayout.num_layers);
  EXPECT_EQ(layers.back().size(), kLayout.layer_bytes());
  EXPECT_EQ(layers.back().back(), std::byte{1});
  pool_.restore(two, SnapshotId(1), 5);
  const StateSlots other = pool_.begin(two, 5, 3);
  const std::byte* restored = bytes_of(pool_, other.read);
  for (const std::span<std::byte> layer : pool_.layers(SnapshotId(1))) {
    EXPECT_EQ(std::memcmp(restored, layer.data(), layer.size()), 0);
    restored += layer.size();
  }
  pool_.committed(two, 8);
  EXPECT_DEATH(pool_.restore(two, SnapshotId(1), 5), "sequence 2 is at position 8");
  EXPECT_DEATH(pool_.save(SequenceId(3), SnapshotId(0)), "sequence 3 has no state yet");
  EXPECT_DEATH(pool_.layers(SnapshotId(2)), "snapshot 2");
}

}  // namespace
}  // namespace sluice
