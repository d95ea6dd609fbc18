// Seats and slots: which slot a pass reads and writes, and what a commit, a pass that is not
// committed and the end of a sequence change.
#include "state/state_pool.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/device_hooks.h"

namespace sluice {
namespace {

constexpr StateLayout kLayout{
    .num_layers = 3,
    .shape = {.num_k_heads = 1, .num_v_heads = 2, .k_dim = 4, .v_dim = 6, .num_taps = 4}};

StatePool::Rows rows(int64_t first_pos, int64_t num_rows, int64_t first_record = -1) {
  return {.first_pos = first_pos, .num_rows = num_rows, .first_record = first_record};
}
StatePool::Rows ahead(int64_t first_pos, int64_t num_ahead) {
  return {.first_pos = first_pos, .num_rows = 1, .num_ahead = num_ahead};
}

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
  const StateSlots first = pool_.begin(id, rows(0, 5));
  EXPECT_NE(first.read, first.write);
  pool_.committed(id, 5);
  const StateSlots second = pool_.begin(id, rows(5, 1));
  EXPECT_EQ(second.read, first.write);
  EXPECT_EQ(second.write, first.read);
}

TEST_F(StatePoolTest, APassThatIsNotCommittedChangesNothing) {
  const SequenceId id(7);
  pool_.begin(id, rows(0, 5));
  pool_.committed(id, 5);
  const StateSlots given_up = pool_.begin(id, rows(5, 9));
  const StateSlots again = pool_.begin(id, rows(5, 2));
  EXPECT_EQ(again.read, given_up.read);
  EXPECT_EQ(again.write, given_up.write);
  pool_.committed(id, 7);
  EXPECT_EQ(pool_.begin(id, rows(7, 1)).read, again.write);
}

TEST_F(StatePoolTest, SequencesHaveSlotsOfTheirOwnAndGiveThemBack) {
  std::set<int32_t> slots;
  for (int64_t i = 0; i < 3; ++i) {
    const StateSlots own = pool_.begin(SequenceId(i), rows(0, 1));
    slots.insert({own.read, own.write});
  }
  EXPECT_EQ(slots, (std::set<int32_t>{0, 1, 2, 3, 4, 5}));
  pool_.release(SequenceId(1));
  pool_.release(SequenceId(1));  // no seat: no effect
  EXPECT_EQ(pool_.num_used_seats(), 2);
  const StateSlots next = pool_.begin(SequenceId(9), rows(0, 1));
  EXPECT_EQ(pool_.num_used_seats(), 3);
  EXPECT_TRUE(slots.contains(next.read) && slots.contains(next.write));
  EXPECT_DEATH(pool_.begin(SequenceId(10), rows(0, 1)), "no seat for sequence 10");
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
  pool_.begin(id, rows(0, 5));
  EXPECT_DEATH(pool_.committed(id, 4), "4 tokens of sequence 7 are committed");
  pool_.committed(id, 5);
  EXPECT_DEATH(pool_.begin(id, rows(4, 1)), "sequence 7 is at position 4, its state at 5");
  pool_.release(id);
  pool_.begin(id, rows(0, 1));  // computed again from the first token on
}

// The bytes of the slot that the next pass reads or writes.
std::byte* bytes_of(const StatePool& pool, int32_t slot) {
  const DeltaStates first = pool.layer(0);
  return first.base + static_cast<size_t>(slot) * first.slot_bytes;
}

TEST_F(StatePoolTest, ASnapshotIsTheCommittedStateAndGoesToAnySequence) {
  const SequenceId one(1), two(2);
  const StateSlots slots = pool_.begin(one, rows(0, 5));
  std::memset(bytes_of(pool_, slots.write), 1, kLayout.slot_bytes());
  pool_.committed(one, 5);
  pool_.save(one, SnapshotId(1));
  // The next pass is enqueued after the copy, and changes nothing of it.
  const auto layers = pool_.layers(SnapshotId(1));
  std::memset(bytes_of(pool_, pool_.begin(one, rows(5, 1)).write), 2, kLayout.slot_bytes());
  ASSERT_EQ(std::ssize(layers), kLayout.num_layers);
  EXPECT_EQ(layers.back().size(), kLayout.layer_bytes());
  EXPECT_EQ(layers.back().back(), std::byte{1});
  pool_.restore(two, SnapshotId(1), 5);
  const StateSlots other = pool_.begin(two, rows(5, 3));
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

// ---- Rows that may be rejected ----------------------------------------------------------------

// Draft passes read the state once, and then go on in the other slot; the pass that verifies begins
// where they did.
TEST_F(StatePoolTest, DraftPassesGoOnInTheSlotThatAPassWrites) {
  const SequenceId id(7);
  pool_.begin(id, rows(0, 5));
  pool_.committed(id, 5);
  const StateSlots first = pool_.begin(id, ahead(5, 0));
  for (int64_t num_ahead = 1; num_ahead < 4; ++num_ahead) {
    const StateSlots next = pool_.begin(id, ahead(5 + num_ahead, num_ahead));
    EXPECT_EQ(next.read, first.write);
    EXPECT_EQ(next.write, first.write);
  }
  EXPECT_DEATH(pool_.committed(id, 9), "9 tokens of sequence 7 are committed");
  EXPECT_DEATH(pool_.begin(id, ahead(10, 5)), "drafts at position 10, its last pass ended at 9");
  const StateSlots verify = pool_.begin(id, rows(5, 4));
  EXPECT_EQ(verify.read, first.read);
  EXPECT_EQ(verify.write, first.write);
}

// Arrays of a replay, as its kernels see them.
struct SeenReplay {
  std::vector<int32_t> row_begin, first_pos, read, write;
  int64_t num_rows = 0;
  int64_t max_rows = 0;

  bool operator==(const SeenReplay&) const = default;
};

class StateReplayTest : public ::testing::Test {
 protected:
  StateReplayTest() {
    pool_.replay_with([this](const StateReplay& replay) {
      SeenReplay& seen = seen_.emplace_back();
      seen.num_rows = replay.num_rows;
      seen.max_rows = replay.rows.max_rows;
      EXPECT_FALSE(replay.rows.has_chunks);
      EXPECT_EQ(replay.rows.first_row, 0);
      copy(replay.rows.row_begin, seen.row_begin);
      copy(replay.rows.first_pos, seen.first_pos);
      copy(replay.rows.read_slots, seen.read);
      copy(replay.rows.write_slots, seen.write);
    });
  }
  ~StateReplayTest() override { stream_->synchronize(); }

  void copy(const TensorView& from, std::vector<int32_t>& to) {
    to.resize(static_cast<size_t>(from.num_elements()));
    stream_->copy({.dst = reinterpret_cast<std::byte*>(to.data()),
                   .src = from.bytes(),
                   .num_bytes = from.num_bytes()});
  }
  // Sequences with 10 tokens each, and their slots in a verify pass whose rows begin at these.
  std::vector<StateSlots> begin_all(const std::vector<int64_t>& first_records,
                                    const std::vector<int64_t>& num_rows) {
    std::vector<StateSlots> slots;
    for (size_t i = 0; i < num_rows.size(); ++i) {
      const SequenceId id(static_cast<int64_t>(i));
      pool_.begin(id, rows(0, 10));
      pool_.committed(id, 10);
      slots.push_back(pool_.begin(id, rows(10, num_rows[i], first_records[i])));
    }
    return slots;
  }

  static constexpr StatePool::Sizes kSizes{.num_seats = 3, .num_snapshots = 4, .num_records = 20};

  std::unique_ptr<Device> device_ = make_device("cpu", {.num_threads = 1});
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "test", .num_threads = 1});
  StatePool pool_{kLayout, kSizes, *device_, *stream_};
  std::deque<SeenReplay> seen_;  // its elements stay where they are
};

TEST_F(StateReplayTest, RecordsAreTakenAsPlanned) {
  EXPECT_EQ(
      device_->allocated_bytes(MemoryKind::kDevice),
      StatePool::device_bytes(kLayout, 3) + StateRecords::device_bytes(kLayout, kSizes.records()));
  EXPECT_EQ(
      device_->allocated_bytes(MemoryKind::kPinned),
      StatePool::pinned_bytes(kLayout, 4) + StateRecords::pinned_bytes(kLayout, kSizes.records()));
  EXPECT_EQ(StateRecords::device_bytes({}, kSizes.records()), 0u);
  EXPECT_EQ(StateRecords::device_bytes(kLayout, {.num_rows = 0, .num_seqs = 3}), 0u);
  const DeltaRecords first = pool_.records(0), second = pool_.records(1);
  EXPECT_EQ(first.in.dim(0), 20);
  EXPECT_EQ(first.in.dim(1), (2 * 4 + 2 * 6) + 2 * 6);
  EXPECT_EQ(first.gates.dim(1), 4);
  EXPECT_GE(second.in.bytes(), first.gates.bytes() + first.gates.num_bytes());
}

// All accepted: the slots change places, and nothing is stepped over again.
TEST_F(StateReplayTest, WhatIsAcceptedWholeIsNotReplayed) {
  const StateSlots slots = begin_all({0}, {4})[0];
  for (int64_t num_tokens = 11; num_tokens <= 14; ++num_tokens) {
    pool_.committed(SequenceId(0), num_tokens);
  }
  pool_.settle();
  EXPECT_TRUE(seen_.empty());
  EXPECT_EQ(pool_.begin(SequenceId(0), rows(14, 1)).read, slots.write);
}

// One replay for all sequences; what was not accepted, and rows of others, are padding.
TEST_F(StateReplayTest, AcceptedRowsAreReplayedIntoTheOtherSlot) {
  const std::vector<StateSlots> slots = begin_all({0, 6, 11}, {6, 5, 4});
  for (const int64_t num_tokens : {11, 12, 13}) pool_.committed(SequenceId(0), num_tokens);
  for (int64_t num_tokens = 11; num_tokens <= 15; ++num_tokens) {
    pool_.committed(SequenceId(1), num_tokens);  // all
  }
  pool_.committed(SequenceId(2), 11);
  pool_.settle();
  pool_.settle();  // nothing is left
  stream_->synchronize();
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0], (SeenReplay{.row_begin = {0, 3, 11, 12},
                                  .first_pos = {10, 0, 10},
                                  .read = {slots[0].read, -1, slots[2].read},
                                  .write = {slots[0].write, -1, slots[2].write},
                                  .num_rows = 12,
                                  .max_rows = 3}));
  EXPECT_EQ(pool_.begin(SequenceId(0), rows(13, 1)).read, slots[0].write);
  EXPECT_EQ(pool_.begin(SequenceId(2), rows(11, 1)).read, slots[2].write);
}

TEST_F(StateReplayTest, RejectedRowsAloneLeaveTheState) {
  const StateSlots slots = begin_all({0}, {4})[0];
  pool_.settle();
  EXPECT_TRUE(seen_.empty());
  EXPECT_EQ(pool_.begin(SequenceId(0), rows(10, 1)).read, slots.read);
}

TEST_F(StateReplayTest, AnEndedSequenceIsNotReplayed) {
  begin_all({0}, {4});
  pool_.committed(SequenceId(0), 12);
  pool_.release(SequenceId(0));
  pool_.settle();
  EXPECT_TRUE(seen_.empty());
}

// A snapshot in the middle of accepted rows: up to it they are replayed first, and the others when
// they are needed, although the pass had gone through all of them.
TEST_F(StateReplayTest, ASnapshotHasTheRowsThatAreCommitted) {
  const StateSlots slots = begin_all({0}, {6})[0];
  pool_.committed(SequenceId(0), 11);
  pool_.committed(SequenceId(0), 12);
  pool_.save(SequenceId(0), SnapshotId(0));
  for (int64_t num_tokens = 13; num_tokens <= 16; ++num_tokens) {
    pool_.committed(SequenceId(0), num_tokens);
  }
  pool_.settle();
  stream_->synchronize();
  ASSERT_EQ(seen_.size(), 2u);
  EXPECT_EQ(seen_[0].row_begin, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(seen_[0].write, (std::vector<int32_t>{slots.write}));
  EXPECT_EQ(seen_[1].row_begin, (std::vector<int32_t>{0, 2, 6}));
  EXPECT_EQ(seen_[1].first_pos, (std::vector<int32_t>{0, 12}));
  EXPECT_EQ(seen_[1].read, (std::vector<int32_t>{-1, slots.write}));
  EXPECT_EQ(seen_[1].write, (std::vector<int32_t>{-1, slots.read}));
  EXPECT_EQ(pool_.begin(SequenceId(0), rows(16, 1)).read, slots.read);
}

// The stream is behind: each replay has arrays of its own, which the next one waits for.
TEST_F(StateReplayTest, ArraysAreNotOverwrittenWhileTheyAreCopied) {
  begin_all({0}, {6});
  testing::Gate gate;
  testing::enqueue_gate(*stream_, gate);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  for (int64_t num_tokens = 11; num_tokens <= 14; ++num_tokens) {
    pool_.committed(SequenceId(0), num_tokens);
    pool_.save(SequenceId(0), SnapshotId(static_cast<int32_t>(num_tokens - 11)));
  }
  opener.join();
  stream_->synchronize();
  ASSERT_EQ(seen_.size(), 4u);
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(seen_[static_cast<size_t>(i)].first_pos.back(), 10 + i) << i;
    EXPECT_EQ(seen_[static_cast<size_t>(i)].row_begin.back(), 1 + i) << i;
  }
}

TEST_F(StateReplayTest, StatesAreSettledBeforeAPass) {
  begin_all({0}, {4});
  pool_.committed(SequenceId(0), 12);
  EXPECT_DEATH(pool_.begin(SequenceId(0), rows(12, 1)), "sequence 0 is at 10 of 12 tokens");
  EXPECT_DEATH(pool_.committed(SequenceId(0), 15), "15 tokens of sequence 0 are committed");
}

}  // namespace
}  // namespace sluice
