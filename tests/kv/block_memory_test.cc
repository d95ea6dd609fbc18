// BlockMemory on the device under test: the addresses of blocks, and poison that fills one block
// only.
#include "kv/block_memory.h"

#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "device/debug_fill.h"
#include "support/test_device.h"

namespace sluice {
namespace {

constexpr int32_t kNumLayers = 3;
constexpr int32_t kNumBlocks = 4;

KvLayout small_layout() {
  return {.num_layers = kNumLayers,
          .block = {.num_kv_heads = 2, .head_dim = 16, .block_tokens = 16}};
}

std::byte* block_of(const BlockMemory& memory, int32_t layer, int32_t block) {
  return memory.block(LayerId(layer), BlockId(block));
}

TEST(DevicePool, TakesItsMemoryOnce) {
  const auto device = testing::make_test_device();
  const int64_t before = device->num_allocations();
  const DevicePool pool(*device, small_layout(), kNumBlocks);
  EXPECT_EQ(device->num_allocations(), before + 1);
  EXPECT_EQ(pool.bytes(), kNumLayers * kNumBlocks * small_layout().block_bytes());
  EXPECT_EQ(device->allocated_bytes(MemoryKind::kDevice), pool.bytes());
}

TEST(DevicePool, BlocksTileTheMemoryWithoutOverlap) {
  const auto device = testing::make_test_device();
  const DevicePool pool(*device, small_layout(), kNumBlocks);
  std::set<std::byte*> starts;
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    EXPECT_EQ(pool.layer(LayerId(layer)).num_blocks, kNumBlocks);
    for (int32_t i = 0; i < kNumBlocks; ++i) starts.insert(block_of(pool, layer, i));
  }
  ASSERT_EQ(starts.size(), static_cast<size_t>(kNumLayers * kNumBlocks));
  std::byte* expected = *starts.begin();
  for (std::byte* start : starts) {
    EXPECT_EQ(start, expected);
    expected += small_layout().block_bytes();
  }
}

TEST(DevicePool, PoisonFillsOneBlockOfEveryLayer) {
  const auto device = testing::make_test_device();
  const auto stream = device->make_stream({.name = "compute"});
  const DevicePool pool(*device, small_layout(), kNumBlocks);
  const Buffer readback = device->allocate(pool.bytes(), MemoryKind::kHost);
  stream->fill(block_of(pool, 0, 0), pool.bytes(), 0x11);
  pool.poison(BlockId(2), *stream);
  stream->copy({.dst = readback.data(), .src = block_of(pool, 0, 0), .num_bytes = pool.bytes()});
  stream->synchronize();

  const size_t block_bytes = small_layout().block_bytes();
  for (size_t i = 0; i < pool.bytes(); ++i) {
    const bool poisoned = kDebugFill && (i / block_bytes) % kNumBlocks == 2;
    ASSERT_EQ(readback.data()[i], poisoned ? std::byte{0xFF} : std::byte{0x11}) << "byte " << i;
  }
}

TEST(DevicePool, DoesNotFitIsTheDevicesError) {
  const auto device = testing::make_test_device({.memory_limit_bytes = 1 << 16});
  try {
    const DevicePool pool(*device, small_layout(), 1 << 16);
    ADD_FAILURE() << "took " << pool.bytes() << " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDoesNotFit);
  }
}

TEST(DevicePoolDeathTest, RefusesLayersAndBlocksItDoesNotHave) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto device = testing::make_test_device();
  const auto stream = device->make_stream({.name = "compute"});
  const DevicePool pool(*device, small_layout(), kNumBlocks);
  EXPECT_DEATH(pool.layer(LayerId(kNumLayers)), "layer 3 of 3");
  EXPECT_DEATH(pool.layer(LayerId(-1)), "layer -1 of 3");
  EXPECT_DEATH(pool.poison(BlockId(kNumBlocks), *stream), "block 4 of 4");
  EXPECT_DEATH(pool.block(LayerId(0), BlockId(kNumBlocks)), "block 4 of 4");
  EXPECT_DEATH(DevicePool(*device, small_layout(), 0), "3 layers of 0 blocks");
}

}  // namespace
}  // namespace sluice
