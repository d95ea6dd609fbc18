// Ring alone: the slot state machine (invariant 2), its events, the poison of freed slots, and
// every forbidden order of calls.
#include "kv/ring.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "device/debug_fill.h"
#include "support/device_hooks.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::download;
using testing::enqueue_gate;
using testing::Gate;

constexpr KvBlockShape kShape{.num_kv_heads = 1, .head_dim = 16, .block_tokens = 16};
constexpr int32_t kSlotBlocks = 2;

class RingTest : public ::testing::Test {
 protected:
  void TearDown() override {
    compute_->synchronize();
  }  // the ring's memory is freed before the stream

  void make_ring(int32_t num_slots) {
    ring_.emplace(*device_, kShape, num_slots, kSlotBlocks, gate_);
  }

  // A lease whose slot was filled with `value`; its load has ended.
  SlotLease load(uint8_t value) {
    SlotLease lease = ring_->begin_load();
    lease.transfer().fill(lease.target().base, slot_bytes(), value);
    lease.loaded();
    return lease;
  }

  // Copies a slot in use to a buffer of its own.
  void read(const KvBlocksView& view) {
    compute_->copy({.dst = seen_.data(), .src = view.base, .num_bytes = slot_bytes()});
  }
  int seen() { return std::to_integer<int>(download(*compute_, seen_).back()); }

  static size_t slot_bytes() { return Ring::bytes(kShape, 1, kSlotBlocks); }

  Gate hold_;  // outlives the streams that it blocks
  std::unique_ptr<Device> device_ = testing::make_test_device();
  WaitGate gate_;
  Buffer seen_ = device_->allocate(slot_bytes(), MemoryKind::kDevice);
  std::unique_ptr<Stream> compute_ = device_->make_stream({.name = "compute"});
  std::optional<Ring> ring_;
};

using RingDeathTest = RingTest;

TEST_F(RingTest, ASlotGoesRound) {
  make_ring(2);
  EXPECT_EQ(ring_->num_free(), 2);
  SlotLease lease = load(7);
  EXPECT_EQ(ring_->num_free(), 1);
  read(lease.use(*compute_));
  EXPECT_TRUE(lease.held());
  lease.release();
  EXPECT_FALSE(lease.held());
  EXPECT_EQ(ring_->num_free(), 2);
  EXPECT_EQ(seen(), 7);
}

TEST_F(RingTest, TakesItsMemoryOnce) {
  const int64_t before = device_->num_allocations();
  make_ring(5);
  EXPECT_EQ(device_->num_allocations(), before + 1);
  EXPECT_EQ(device_->allocated_bytes(MemoryKind::kDevice), 5 * slot_bytes() + slot_bytes());
}

TEST_F(RingTest, TheSlotFreeForLongestIsNext) {
  make_ring(3);
  std::vector<std::byte*> order;
  for (int i = 0; i < 6; ++i) {
    const SlotLease lease = ring_->begin_load();
    order.push_back(lease.target().base);
  }
  EXPECT_EQ(order[0] + slot_bytes(), order[1]);
  EXPECT_EQ(order[1] + slot_bytes(), order[2]);
  EXPECT_EQ(std::vector(order.begin(), order.begin() + 3),
            std::vector(order.begin() + 3, order.end()));

  // Given back in another order than taken.
  SlotLease a = load(1), b = load(2), c = load(3);
  b.use(*compute_);
  b.release();
  a.use(*compute_);
  a.release();
  EXPECT_EQ(ring_->begin_load().target().base, order[1]);
  EXPECT_EQ(ring_->begin_load().target().base, order[0]);
}

// "drained" from outside: while the reader is blocked, the next load of the same slot must not
// overwrite the bytes that it will read.
TEST_F(RingTest, ALoadWaitsForTheReadersOfTheSlot) {
  make_ring(1);
  SlotLease first = load(1);
  const KvBlocksView& view = first.use(*compute_);
  enqueue_gate(*compute_, hold_);
  read(view);
  first.release();
  SlotLease second = load(2);  // enqueued at once, although the first reader has not begun
  hold_.open();
  EXPECT_EQ(seen(), 1);
  read(second.use(*compute_));
  EXPECT_EQ(seen(), 2);
}

TEST_F(RingTest, AReaderWaitsForTheLoad) {
  make_ring(1);
  SlotLease lease = ring_->begin_load();
  enqueue_gate(lease.transfer(), hold_);
  lease.transfer().fill(lease.target().base, slot_bytes(), 9);
  lease.loaded();
  read(lease.use(*compute_));
  hold_.open();
  EXPECT_EQ(seen(), 9);
}

TEST_F(RingTest, SlotsLoadIndependently) {
  make_ring(2);
  SlotLease held_up = ring_->begin_load();
  enqueue_gate(held_up.transfer(), hold_);
  held_up.loaded();
  SlotLease other = load(4);
  read(other.use(*compute_));
  EXPECT_EQ(seen(), 4) << "the other slot's load is still held up";
  hold_.open();
}

TEST_F(RingTest, AFreedSlotIsPoisonedInDebug) {
  if (!kDebugFill) GTEST_SKIP() << "a release build";
  make_ring(1);
  SlotLease lease = load(1);
  lease.use(*compute_);
  lease.release();
  lease = ring_->begin_load();
  lease.loaded();  // nothing was loaded, so the slot has the bytes that it was freed with
  read(lease.use(*compute_));
  EXPECT_EQ(seen(), kNanByte);
}

// A pass that fails drops its leases in whatever state they are.
TEST_F(RingTest, ADroppedLeaseGivesItsSlotBackInEveryState) {
  make_ring(2);
  { const SlotLease loading = ring_->begin_load(); }
  EXPECT_EQ(ring_->num_free(), 2);
  { const SlotLease filled = load(1); }
  EXPECT_EQ(ring_->num_free(), 2);
  {
    SlotLease in_use = load(2);
    in_use.use(*compute_);
  }
  EXPECT_EQ(ring_->num_free(), 2);
  SlotLease lease = load(3);
  read(lease.use(*compute_));
  EXPECT_EQ(seen(), 3);
}

TEST_F(RingTest, AMovedLeaseIsHeldOnce) {
  make_ring(2);
  SlotLease a = load(1);
  SlotLease b = std::move(a);
  EXPECT_FALSE(
      a.held());  // NOLINT(bugprone-use-after-move): the state after a move is part of the contract
  EXPECT_TRUE(b.held());
  EXPECT_EQ(ring_->num_free(), 1);
  b.use(*compute_);
  b.release();
  EXPECT_EQ(ring_->num_free(), 2);
}

// ---- Every forbidden order ------------------------------------------------------------------

TEST_F(RingDeathTest, NoSlotIsTakenTwice) {
  make_ring(1);
  const SlotLease lease = ring_->begin_load();
  EXPECT_DEATH(ring_->begin_load(), "all 1 slots are taken");
}

TEST_F(RingDeathTest, WhileLoadingNothingButLoading) {
  make_ring(1);
  SlotLease lease = ring_->begin_load();
  EXPECT_DEATH(lease.use(*compute_), "slot 0 is in state");
  EXPECT_DEATH(lease.release(), "slot 0 is in state");
}

TEST_F(RingDeathTest, WhileFilledOnlyUse) {
  make_ring(1);
  SlotLease lease = load(1);
  EXPECT_DEATH(lease.transfer(), "slot 0 is in state");
  EXPECT_DEATH(lease.target(), "slot 0 is in state");
  EXPECT_DEATH(lease.loaded(), "slot 0 is in state");
  EXPECT_DEATH(lease.release(), "slot 0 is in state");
}

TEST_F(RingDeathTest, WhileInUseOnlyRelease) {
  make_ring(1);
  SlotLease lease = load(1);
  lease.use(*compute_);
  EXPECT_DEATH(lease.transfer(), "slot 0 is in state");
  EXPECT_DEATH(lease.target(), "slot 0 is in state");
  EXPECT_DEATH(lease.loaded(), "slot 0 is in state");
  EXPECT_DEATH(lease.use(*compute_), "slot 0 is in state");
}

TEST_F(RingDeathTest, NothingAfterRelease) {
  make_ring(1);
  SlotLease lease = load(1);
  lease.use(*compute_);
  lease.release();
  EXPECT_DEATH(lease.transfer(), "given back");
  EXPECT_DEATH(lease.target(), "given back");
  EXPECT_DEATH(lease.loaded(), "given back");
  EXPECT_DEATH(lease.use(*compute_), "given back");
  EXPECT_DEATH(lease.release(), "given back");
}

}  // namespace
}  // namespace sluice
