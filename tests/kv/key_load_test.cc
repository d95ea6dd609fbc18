// Loads of keys alone: the keys of every head and block arrive, no value crosses the link, and the
// counters say so.
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "kv/offload_engine.h"
#include "support/device_hooks.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::download;
using testing::enqueue_gate;

constexpr int32_t kKeyHeads = 3, kKeyBlocks = 4;
constexpr KvLayout kKeyLayout{
    .num_layers = 2, .block = {.num_kv_heads = kKeyHeads, .head_dim = 16, .block_tokens = 32}};
constexpr int64_t kHalf = 32 * 16 * sizeof(BFloat16);  // keys, or values, of a head in a block

class KeyLoadTest : public ::testing::Test {
 protected:
  void TearDown() override {
    compute_->synchronize();
  }  // the engine's memory is freed before the stream

  static OffloadSizes sizes() {
    return {.num_host_blocks = 32,
            .num_slots = 2,
            .slot_blocks = kKeyBlocks,
            .stage_blocks = kKeyBlocks,
            .num_tails = 1,
            .copy_run_bytes = size_t{1} << 40};  // whole blocks would go by a kernel
  }

  // Byte of one head's keys (half 0) or values (half 1) of a host block.
  static uint8_t value_of(BlockId id, int32_t head, int32_t half) {
    return static_cast<uint8_t>(1 + id.value * 6 + head * 2 + half);
  }

  void prefill(LayerId layer, const std::vector<BlockId>& blocks) {
    const KvBlocksView stage = engine_->begin_stage(layer);
    std::vector<StagedBlock> leaving;
    for (const BlockId id : blocks) {
      const StageId stage_id(static_cast<int32_t>(leaving.size()));
      auto* bytes = stage.block(stage_id.value);
      for (int32_t i = 0; i < 2 * kKeyHeads; ++i) {
        compute_->fill(bytes + i * kHalf, kHalf, value_of(id, i / 2, i % 2));
      }
      leaving.push_back({.stage_id = stage_id, .host_id = id});
    }
    engine_->write_back_stage(layer, leaving);
  }

  // The bytes of a slot after a load of keys.
  std::vector<std::byte> load_keys(LayerId layer, const std::vector<BlockId>& blocks) {
    SlotLease lease = engine_->loader().load(layer, blocks, BlockPart::kKeys);
    const KvBlocksView& view = lease.use(*compute_);
    compute_->copy({.dst = seen_.data(), .src = view.base, .num_bytes = seen_.size_bytes()});
    lease.release();
    return download(*compute_, seen_);
  }

  std::unique_ptr<Device> device_ = testing::make_test_device();
  Buffer seen_ = device_->allocate(kKeyBlocks * kKeyLayout.block_bytes(), MemoryKind::kDevice);
  std::unique_ptr<Stream> compute_ = device_->make_stream({.name = "compute"});
  std::optional<OffloadEngine> engine_{std::in_place, *device_, *compute_, kKeyLayout, sizes()};
};

TEST_F(KeyLoadTest, BringsTheKeysOfEveryHeadAndBlockAndNoValue) {
  const LayerId layer(1);
  const std::vector<BlockId> blocks = {BlockId(5), BlockId(6), BlockId(20), BlockId(3)};
  const std::vector<BlockId> others = {BlockId(10), BlockId(11), BlockId(12), BlockId(13)};
  prefill(layer, others);
  prefill(layer, blocks);
  for (int32_t slot = 0; slot < sizes().num_slots; ++slot) {  // so that no value is there by chance
    SlotLease lease = engine_->loader().load(layer, others);
    lease.use(*compute_);
    lease.release();
  }
  const std::vector<std::byte> seen = load_keys(layer, blocks);
  for (size_t block = 0; block < blocks.size(); ++block) {
    for (int32_t head = 0; head < kKeyHeads; ++head) {
      const std::byte* keys = seen.data() + block * kKeyLayout.block_bytes() + head * 2 * kHalf;
      for (int64_t i = 0; i < kHalf; ++i) {
        ASSERT_EQ(std::to_integer<uint8_t>(keys[i]), value_of(blocks[block], head, 0))
            << "block " << block << ", head " << head << ", byte " << i;
        ASSERT_NE(std::to_integer<uint8_t>(keys[kHalf + i]), value_of(blocks[block], head, 1))
            << "a value of block " << block << ", head " << head;
      }
    }
  }
}

TEST_F(KeyLoadTest, CountsHalfOfTheBytesAndACopyForEachRun) {
  const LayerId layer(0);
  const std::vector<BlockId> blocks = {BlockId(5), BlockId(6), BlockId(20), BlockId(3)};
  prefill(layer, blocks);
  const TransferCounters before = engine_->counters();
  load_keys(layer, blocks);
  const TransferCounters& after = engine_->counters();
  const auto block_bytes = static_cast<int64_t>(kKeyLayout.block_bytes());
  EXPECT_EQ(after.key_bytes, 4 * block_bytes / 2);
  EXPECT_EQ(after.loaded_bytes[0], 4 * block_bytes / 2);
  EXPECT_EQ(after.num_copies - before.num_copies, 3) << "5, 6 | 20 | 3, and no kernel";
  EXPECT_EQ(after.num_loads, 1);
  SlotLease lease = engine_->loader().load_early(layer, blocks, BlockPart::kKeys);
  EXPECT_EQ(engine_->counters().key_bytes, 4 * block_bytes / 2) << "not counted yet";
  engine_->loader().drop(std::move(lease), layer, blocks, BlockPart::kKeys);
  EXPECT_EQ(engine_->counters().key_bytes, 4 * block_bytes);
}

// Columns are read where the host tier has them: no slot, but compute waits for the write-back.
TEST_F(KeyLoadTest, ReadsInPlaceWhatHasBeenWrittenBack) {
  const LayerId layer(1);
  const std::vector<BlockId> blocks = {BlockId(5), BlockId(20), BlockId(3)};
  prefill(layer, blocks);
  const int64_t num_waits = engine_->num_waits(WaitKind::kOnHost);
  const int64_t num_loads = engine_->counters().num_loads;
  const KvBlocksView host = engine_->loader().read_in_place(layer, blocks);
  EXPECT_EQ(engine_->num_waits(WaitKind::kOnHost), num_waits + 1);
  EXPECT_EQ(engine_->counters().num_loads, num_loads);
  for (const BlockId id : blocks) {
    compute_->copy(
        {.dst = seen_.data(), .src = host.block(id.value), .num_bytes = kKeyLayout.block_bytes()});
    const std::vector<std::byte> seen = download(*compute_, seen_);
    for (int32_t i = 0; i < 2 * kKeyHeads; ++i) {
      for (int64_t at = i * kHalf; at < (i + 1) * kHalf; ++at) {
        ASSERT_EQ(std::to_integer<uint8_t>(seen[at]), value_of(id, i / 2, i % 2))
            << "block " << id.value << ", byte " << at;
      }
    }
  }
}

// A block's keys are on their way to a summary when its only sequence ends: the block is discarded,
// and another sequence's keys are read into it from a file.
TEST_F(KeyLoadTest, KeysThatAreStagedComeBeforeTheBlocksNextContents) {
  const LayerId layer(1);
  const BlockId id(5);
  prefill(layer, {id});
  engine_->synchronize();
  testing::Gate gate;
  enqueue_gate(*compute_, gate);
  const KvBlocksView staged = engine_->stage_keys(layer, id);
  compute_->copy({.dst = seen_.data(), .src = staged.base, .num_bytes = kKeyLayout.block_bytes()});
  engine_->discard(id);
  std::thread opens([&gate] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  engine_->settle_discarded();
  std::memset(engine_->host().block(layer, id), 0x77, kKeyLayout.block_bytes());
  opens.join();
  const std::vector<std::byte> seen = download(*compute_, seen_);
  for (int32_t head = 0; head < kKeyHeads; ++head) {
    for (int64_t i = 0; i < kHalf; ++i) {
      ASSERT_EQ(std::to_integer<uint8_t>(seen[2 * head * kHalf + i]), value_of(id, head, 0))
          << "head " << head << ", byte " << i;
    }
  }
}

}  // namespace
}  // namespace sluice
