// OffloadEngine alone: loads return the bytes that were written back, in any order that the streams
// run in. Missing waits (for the write-back, for a tail that is still leaving), wrong runs of
// copies and wrong counters would show.
#include "kv/offload_engine.h"

#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "device/debug_fill.h"
#include "support/device_hooks.h"
#include "support/seeds.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::download;
using testing::enqueue_gate;
using testing::Gate;

constexpr int32_t kNumLayers = 3;
constexpr KvLayout kLayout{.num_layers = kNumLayers,
                           .block = {.num_kv_heads = 1, .head_dim = 16, .block_tokens = 16}};
constexpr OffloadSizes kSizes{
    .num_host_blocks = 100, .num_slots = 2, .slot_blocks = 4, .stage_blocks = 4, .num_tails = 3};
constexpr SequenceId kSequence(7);
const auto kBlockBytes = static_cast<int64_t>(kLayout.block_bytes());

// Copies alone, kernels alone, and the choice by the length of a load's runs.
const size_t kCopyRunBytes[] = {0, size_t{1} << 40, 2 * kLayout.block_bytes()};

std::vector<BlockId> ids(std::vector<int32_t> values) {
  std::vector<BlockId> result;
  for (const int32_t value : values) result.emplace_back(value);
  return result;
}

class OffloadEngineTest : public ::testing::Test {
 protected:
  explicit OffloadEngineTest(uint64_t schedule_seed = 0, size_t copy_run_bytes = 0) {
    OffloadSizes sizes = kSizes;
    sizes.copy_run_bytes = copy_run_bytes;
    device_ = testing::make_test_device({}, {.schedule_seed = schedule_seed});
    seen_ = device_->allocate(kSizes.slot_blocks * kLayout.block_bytes(), MemoryKind::kDevice);
    compute_ = device_->make_stream({.name = "compute"});
    engine_.emplace(*device_, *compute_, kLayout, sizes);
  }

  // Replaces the engine by one with this setting.
  void use_copy_run_bytes(size_t copy_run_bytes) {
    OffloadSizes sizes = kSizes;
    sizes.copy_run_bytes = copy_run_bytes;
    compute_->synchronize();  // the engine's constructor enqueues on it
    engine_.reset();
    engine_.emplace(*device_, *compute_, kLayout, sizes);
  }

  void TearDown() override {
    compute_->synchronize();
  }  // the engine's memory is freed before the stream

  void write(const KvBlocksView& view, int32_t index, uint8_t value) {
    compute_->fill(view.block(index), kLayout.block_bytes(), value);
  }

  // One pass of one layer: writes `values` to the stage and sends them to `blocks`.
  void prefill(int32_t layer, const std::vector<BlockId>& blocks,
               const std::vector<uint8_t>& values) {
    const KvBlocksView stage = engine_->begin_stage(LayerId(layer));
    std::vector<StagedBlock> leaving;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto index = static_cast<int32_t>(i);
      write(stage, index, values[i]);
      leaving.push_back({.stage_id = StageId(index), .host_id = blocks[i]});
    }
    engine_->write_back_stage(LayerId(layer), leaving);
  }

  // The first and the last byte of each block that a load brings, as one number per block.
  std::vector<int> load(int32_t layer, const std::vector<BlockId>& blocks) {
    SlotLease lease = engine_->loader().load(LayerId(layer), blocks);
    const KvBlocksView& view = lease.use(*compute_);
    compute_->copy({.dst = seen_.data(), .src = view.base, .num_bytes = seen_.size_bytes()});
    lease.release();
    const std::vector<std::byte> bytes = download(*compute_, seen_);
    std::vector<int> values;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto* begin = bytes.data() + i * kLayout.block_bytes();
      EXPECT_EQ(begin[0], begin[kBlockBytes - 1]) << "block " << i << " is torn";
      values.push_back(std::to_integer<int>(begin[0]));
    }
    return values;
  }

  std::unique_ptr<Device> device_;
  Buffer seen_;
  std::unique_ptr<Stream> compute_;
  std::optional<OffloadEngine> engine_;
};

using OffloadEngineDeathTest = OffloadEngineTest;

TEST(HostTierTest, WhatCannotBePinnedNamesTheOption) {
  const auto device = testing::make_test_device();
  try {
    constexpr KvLayout kHuge{.num_layers = 1 << 20,
                             .block = {.num_kv_heads = 8, .head_dim = 128, .block_tokens = 1024}};
    HostTier(*device, kHuge, 1 << 20);
    FAIL() << "pinned it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("kv_host_bytes"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("left"), std::string::npos) << error.what();
  }
}

TEST_F(OffloadEngineTest, TakesTheMemoryThatItSays) {
  EXPECT_EQ(device_->allocated_bytes(MemoryKind::kDevice),
            OffloadEngine::device_bytes(kLayout, kSizes) + seen_.size_bytes());
  EXPECT_EQ(device_->allocated_bytes(MemoryKind::kPinned),
            OffloadEngine::pinned_bytes(kLayout, kSizes));
}

TEST_F(OffloadEngineTest, WhatLeftComesBack) {
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    const auto base = static_cast<uint8_t>(10 * layer);
    prefill(layer, ids({5, 9, 2}), {uint8_t(base + 1), uint8_t(base + 2), uint8_t(base + 3)});
  }
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    EXPECT_EQ(load(layer, ids({2, 5, 9})),
              (std::vector{10 * layer + 3, 10 * layer + 1, 10 * layer + 2}));
  }
}

// The load is enqueued at once, but must not read before the write-back has ended.
TEST_F(OffloadEngineTest, ALoadDoesNotOvertakeTheWriteBack) {
  for (const size_t copy_run_bytes : kCopyRunBytes) {
    use_copy_run_bytes(copy_run_bytes);
    Gate gate;
    enqueue_gate(*compute_, gate);
    prefill(0, ids({7}), {1});
    SlotLease lease = engine_->loader().load(LayerId(0), ids({7}));
    compute_->copy({.dst = seen_.data(),
                    .src = lease.use(*compute_).base,
                    .num_bytes = kLayout.block_bytes()});
    lease.release();
    gate.open();
    EXPECT_EQ(std::to_integer<int>(download(*compute_, seen_)[0]), 1) << copy_run_bytes;
  }
}

// Here copies are chosen from an average run of two blocks on, and a kernel below.
TEST_F(OffloadEngineTest, ShortRunsAreOneKernel) {
  use_copy_run_bytes(2 * kLayout.block_bytes());
  prefill(0, ids({4, 5, 6, 7}), {1, 2, 3, 4});
  const int64_t before = engine_->counters().num_copies;
  EXPECT_EQ(load(0, ids({5, 4, 6, 7})), (std::vector{2, 1, 3, 4}));
  EXPECT_EQ(engine_->counters().num_copies, before + 1) << "5 | 4 | 6, 7: 4 / 3 blocks";
  EXPECT_EQ(load(0, ids({6, 7, 4, 5})), (std::vector{3, 4, 1, 2}));
  EXPECT_EQ(engine_->counters().num_copies, before + 3) << "6, 7 | 4, 5: two copies";
  EXPECT_EQ(load(0, ids({7})), (std::vector{4}));
  EXPECT_EQ(engine_->counters().num_copies, before + 4);
  EXPECT_EQ(engine_->counters().loaded_bytes[0], 9 * kBlockBytes);
  EXPECT_EQ(engine_->counters().num_loads, 3);
}

TEST_F(OffloadEngineTest, NeighboursAreOneCopy) {
  prefill(0, ids({4, 5, 6, 7}), {1, 2, 3, 4});
  EXPECT_EQ(engine_->counters().num_copies, 1);
  prefill(0, ids({10, 12, 13}), {5, 6, 7});
  EXPECT_EQ(engine_->counters().num_copies, 3);
  EXPECT_EQ(load(0, ids({4, 5, 6, 7})), (std::vector{1, 2, 3, 4}));
  EXPECT_EQ(engine_->counters().num_copies, 4);
  EXPECT_EQ(load(0, ids({5, 4, 12, 13})), (std::vector{2, 1, 6, 7}));
  EXPECT_EQ(engine_->counters().num_copies, 7) << "5 | 4 | 12, 13";
  EXPECT_EQ(engine_->counters().num_loads, 2);
}

// The newest load of each slot; it is held from its load to its release.
TEST_F(OffloadEngineTest, SlotsSayWhatTheyHave) {
  prefill(0, ids({4, 5, 6, 7}), {1, 2, 3, 4});
  prefill(1, ids({4, 5, 6, 7}), {1, 2, 3, 4});
  HostLoader& loader = engine_->loader();
  ASSERT_EQ(loader.slot_contents().size(), 2u);
  for (const SlotContents& slot : loader.slot_contents()) {
    EXPECT_FALSE(slot.is_held || slot.layer.valid());
  }
  SlotLease first = loader.load(LayerId(0), ids({4, 5, 6}));
  SlotLease second = loader.load_early(LayerId(1), ids({7}));
  std::vector<SlotContents> slots = loader.slot_contents();
  EXPECT_TRUE(slots[0].is_held && slots[1].is_held);
  EXPECT_EQ(slots[0].layer, LayerId(0));
  EXPECT_EQ(slots[0].blocks, ids({4, 5, 6}));
  EXPECT_EQ(slots[1].layer, LayerId(1));
  EXPECT_EQ(slots[1].blocks, ids({7}));
  first.use(*compute_);
  EXPECT_TRUE(loader.slot_contents()[0].is_held);
  first.release();
  EXPECT_FALSE(loader.slot_contents()[0].is_held);
  const SlotLease third = loader.load(LayerId(1), ids({5}));
  slots = loader.slot_contents();
  EXPECT_EQ(slots[0].blocks, ids({5}));
  EXPECT_EQ(slots[1].blocks, ids({7})) << "of a load that nobody has read";
  EXPECT_FALSE(slots[0].has_pages);
}

// Blocks that are adjacent on the host but not in the stage (a partial block lay between) take two
// copies.
TEST_F(OffloadEngineTest, NeighboursOnOneSideOnlyAreTwoCopies) {
  const KvBlocksView stage = engine_->begin_stage(LayerId(0));
  for (int32_t i = 0; i < 3; ++i) write(stage, i, static_cast<uint8_t>(i + 1));
  const std::vector<StagedBlock> leaving{{.stage_id = StageId(0), .host_id = BlockId(20)},
                                         {.stage_id = StageId(2), .host_id = BlockId(21)}};
  engine_->write_back_stage(LayerId(0), leaving);
  EXPECT_EQ(engine_->counters().num_copies, 2);
  EXPECT_EQ(load(0, ids({20, 21})), (std::vector{1, 3}));
}

TEST_F(OffloadEngineTest, CountsBytesPerLayer) {
  prefill(0, ids({1, 2}), {1, 2});
  prefill(2, ids({1}), {3});
  load(0, ids({1, 2}));
  load(0, ids({2}));
  EXPECT_EQ(engine_->counters().written_bytes, (std::vector{2 * kBlockBytes, 0L, kBlockBytes}));
  EXPECT_EQ(engine_->counters().loaded_bytes, (std::vector{3 * kBlockBytes, 0L, 0L}));
}

TEST_F(OffloadEngineTest, ATailLeavesInOneStridedCopy) {
  const TailId tail = engine_->tails().take(kSequence);
  const TailId other = engine_->tails().take(SequenceId(9));
  EXPECT_NE(tail, other);
  EXPECT_EQ(engine_->tails().num_free(), 1);
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    write(engine_->places().tails(LayerId(layer)), tail.value, static_cast<uint8_t>(layer + 1));
    write(engine_->places().tails(LayerId(layer)), other.value, 99);
  }
  engine_->flush_tail(kSequence, BlockId(31));
  EXPECT_EQ(engine_->counters().num_copies, 1);
  EXPECT_EQ(engine_->tails().num_free(), 2);
  EXPECT_EQ(engine_->counters().written_bytes, std::vector(kNumLayers, kBlockBytes));
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    EXPECT_EQ(load(layer, ids({31})), std::vector{layer + 1});
  }
}

// A tail that is reused at once must not be written before its last block has been copied out.
TEST_F(OffloadEngineTest, ATailIsUsedAgainOnlyWhenItHasLeft) {
  for (int round = 0; round < 2 * kSizes.num_tails; ++round) {
    const TailId tail = engine_->tails().take(kSequence);
    for (int32_t layer = 0; layer < kNumLayers; ++layer) {
      write(engine_->places().tails(LayerId(layer)), tail.value, static_cast<uint8_t>(round + 1));
    }
    engine_->flush_tail(kSequence, BlockId(40 + round));
  }
  for (int round = 0; round < 2 * kSizes.num_tails; ++round) {
    EXPECT_EQ(load(kNumLayers - 1, ids({40 + round})), std::vector{round + 1});
  }
}

TEST_F(OffloadEngineTest, APartialBlockMovesFromStageToTail) {
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    const KvBlocksView stage = engine_->begin_stage(LayerId(layer));
    write(stage, 0, static_cast<uint8_t>(layer + 1));
    write(stage, 1, static_cast<uint8_t>(layer + 51));
    if (layer == 0) engine_->tails().take(kSequence);
    engine_->move_to_tail(LayerId(layer), StageId(1), engine_->tails().find(kSequence));
    const std::vector<StagedBlock> leaving{{.stage_id = StageId(0), .host_id = BlockId(3)}};
    engine_->write_back_stage(LayerId(layer), leaving);
  }
  engine_->flush_tail(kSequence, BlockId(4));
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    EXPECT_EQ(load(layer, ids({3, 4})), (std::vector{layer + 1, layer + 51}));
  }
}

// Only the newest 64 write-backs have an event of their own.
TEST_F(OffloadEngineTest, OldTicketsStayGood) {
  for (int32_t i = 0; i < 100; ++i) prefill(0, ids({i}), {static_cast<uint8_t>(i + 1)});
  for (const int32_t i : {0, 1, 34, 35, 36, 37, 98, 99}) {
    EXPECT_EQ(load(0, ids({i})), std::vector{i + 1}) << "block " << i;
  }
}

TEST_F(OffloadEngineTest, AnOldTicketDoesNotWaitForTheNewestWriteBack) {
  prefill(0, ids({0}), {1});
  for (int32_t i = 1; i < 70; ++i) prefill(0, ids({i}), {static_cast<uint8_t>(i + 1)});
  engine_->synchronize();
  Gate gate;
  enqueue_gate(*compute_, gate);
  prefill(1, ids({1}), {1});  // compute is blocked, and with it this write-back
  SlotLease lease = engine_->loader().load(LayerId(0), ids({0}));
  // Read by another stream, since compute is blocked.
  const auto reader = device_->make_stream({.name = "reader"});
  reader->copy(
      {.dst = seen_.data(), .src = lease.use(*reader).base, .num_bytes = kLayout.block_bytes()});
  lease.release();
  EXPECT_EQ(std::to_integer<int>(download(*reader, seen_)[0]), 1);
  gate.open();
  engine_->synchronize();
}

TEST_F(OffloadEngineTest, ABlockIsWrittenAgainByItsNextOwner) {
  prefill(0, ids({8}), {1});
  EXPECT_EQ(load(0, ids({8})), std::vector{1});
  engine_->discard(BlockId(8));
  prefill(0, ids({8}), {2});
  EXPECT_EQ(load(0, ids({8})), std::vector{2});
}

TEST_F(OffloadEngineTest, DiscardPoisonsTheHostBlockInDebug) {
  if (!kDebugFill) GTEST_SKIP() << "a release build";
  prefill(0, ids({8, 9}), {1, 2});
  engine_->discard(BlockId(8));
  engine_->synchronize();
  EXPECT_EQ(std::to_integer<int>(engine_->host().block(LayerId(0), BlockId(8))[0]), kNanByte);
  EXPECT_EQ(std::to_integer<int>(engine_->host().block(LayerId(0), BlockId(9))[0]), 2);
}

TEST_F(OffloadEngineDeathTest, AForgottenBlockCannotBeLoaded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a CUDA context does not survive a fork
  EXPECT_DEATH(engine_->loader().load(LayerId(0), ids({8})),
               "block 8 of layer 0 was never written");
  prefill(0, ids({8}), {1});
  EXPECT_DEATH(engine_->loader().load(LayerId(1), ids({8})),
               "block 8 of layer 1 was never written");
  engine_->discard(BlockId(8));
  EXPECT_DEATH(engine_->loader().load(LayerId(0), ids({8})),
               "block 8 of layer 0 was never written");
}

TEST_F(OffloadEngineDeathTest, TooMuchIsRefused) {
  EXPECT_DEATH(engine_->loader().load(LayerId(0), {}), "blocks.empty");
  EXPECT_DEATH(engine_->loader().load(LayerId(0), ids({1, 2, 3, 4, 5})), "slot_blocks");
  EXPECT_DEATH(engine_->host().block(LayerId(0), BlockId(100)), "block 100");
  EXPECT_DEATH(engine_->host().block(LayerId(kNumLayers), BlockId(0)), "layer 3");
  for (int i = 0; i < kSizes.num_tails; ++i) engine_->tails().take(SequenceId(i));
  EXPECT_DEATH(engine_->tails().take(SequenceId(9)), "all 3 tails are taken");
  EXPECT_DEATH(engine_->flush_tail(SequenceId(9), BlockId(1)), "sequence 9 has no tail");
}

// Random passes, flushes, discards and loads against a model of the host tier, under delays.
class OffloadEngineFuzz : public OffloadEngineTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  OffloadEngineFuzz()
      : OffloadEngineTest(GetParam(), kCopyRunBytes[GetParam() % std::size(kCopyRunBytes)]) {}
};

TEST_P(OffloadEngineFuzz, BytesAreThoseOfTheNewestWrite) {
  SCOPED_TRACE(::testing::Message() << "SLUICE_TEST_SEED=" << GetParam());
  std::mt19937_64 random(GetParam());
  std::vector<int> truth(static_cast<size_t>(kNumLayers) * 100, -1);
  const auto at = [&](int32_t layer, int32_t id) -> int& {
    return truth[static_cast<size_t>(layer * 100 + id)];
  };
  uint8_t next = 0;
  for (int step = 0; step < 150; ++step) {
    const auto layer = static_cast<int32_t>(random() % kNumLayers);
    const auto id = static_cast<int32_t>(random() % 20);
    if (random() % 4 == 0) {
      const TailId tail = engine_->tails().take(kSequence);
      next = static_cast<uint8_t>((next + 1) % 200);
      for (int32_t l = 0; l < kNumLayers; ++l) {
        write(engine_->places().tails(LayerId(l)), tail.value, next);
        at(l, id) = next;
      }
      engine_->flush_tail(kSequence, BlockId(id));
    } else if (random() % 2 == 0) {
      next = static_cast<uint8_t>((next + 1) % 200);
      prefill(layer, ids({id}), {next});
      at(layer, id) = next;
    } else {
      std::vector<BlockId> wanted;
      std::vector<int> expected;
      for (int32_t i = id; i < 20 && wanted.size() < random() % 5; ++i) {
        if (at(layer, i) < 0) continue;
        wanted.emplace_back(i);
        expected.push_back(at(layer, i));
      }
      if (wanted.empty()) continue;
      EXPECT_EQ(load(layer, wanted), expected) << "step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, OffloadEngineFuzz, ::testing::ValuesIn(testing::test_seeds(10)));

}  // namespace
}  // namespace sluice
