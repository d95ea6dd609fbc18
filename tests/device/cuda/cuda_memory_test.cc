// Large pinned memory is made in another way than small, but copies and kernels must see no
// difference.
#include <cstring>
#include <memory>

#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_pinning.h"
#include "device/cuda/cuda_stream.h"
#include "support/cuda/test_kernels.h"
#include "support/device_hooks.h"

namespace sluice {
namespace {

using testing::make_device_if_present;

constexpr size_t kMib = size_t{1} << 20;

class CudaMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = make_device_if_present("cuda");
    if (device_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
    stream_ = device_->make_stream({.name = "a"});
  }

  // Fills with bytes that differ from those one piece later.
  static void count_up(const Buffer& buffer) {
    auto* words = reinterpret_cast<uint32_t*>(buffer.data());
    for (size_t i = 0; i < buffer.size_bytes() / sizeof(uint32_t); ++i) {
      words[i] = static_cast<uint32_t>(i) * 2654435761u;
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudaMemoryTest, SmallAndLargePinnedMemoryIsCopiedWhole) {
  for (const size_t size : {kLargePinnedBytes - 4, kLargePinnedBytes, 3 * kLargePinnedBytes + 4}) {
    const Buffer pinned = device_->allocate(size, MemoryKind::kPinned);
    const Buffer back = device_->allocate(size, MemoryKind::kPinned);
    const Buffer on_device = device_->allocate(size, MemoryKind::kDevice);
    count_up(pinned);
    stream_->copy({.dst = on_device.data(), .src = pinned.data(), .num_bytes = size});
    stream_->copy({.dst = back.data(), .src = on_device.data(), .num_bytes = size});
    stream_->synchronize();
    EXPECT_EQ(std::memcmp(pinned.data(), back.data(), size), 0) << size;
  }
}

// The memory is backed in pieces; copies, rows and kernels must work across their borders.
TEST_F(CudaMemoryTest, CopiesAndRowsGoAcrossPieces) {
  constexpr size_t kPiece = 64 * kMib;
  constexpr size_t kRow = 3 * kMib;
  constexpr size_t kRows = 4;
  const Buffer pinned = device_->allocate(5 * kPiece, MemoryKind::kPinned);
  const Buffer back = device_->allocate(5 * kPiece, MemoryKind::kPinned);
  const Buffer on_device = device_->allocate(kRows * kRow, MemoryKind::kDevice);
  count_up(pinned);
  std::memset(back.data(), 0, back.size_bytes());
  const size_t first = kPiece - kRow / 2;  // every row crosses a border
  const auto copy = [&](std::byte* dst, size_t dst_stride, const std::byte* src,
                        size_t src_stride) {
    stream_->copy_2d({.dst = dst,
                      .dst_stride_bytes = dst_stride,
                      .src = src,
                      .src_stride_bytes = src_stride,
                      .row_bytes = kRow,
                      .num_rows = kRows});
  };
  copy(on_device.data(), kRow, pinned.data() + first, kPiece);
  copy(back.data() + first, kPiece, on_device.data(), kRow);
  stream_->synchronize();
  for (size_t row = 0; row < kRows; ++row) {
    const size_t offset = first + row * kPiece;
    EXPECT_EQ(std::memcmp(back.data() + offset, pinned.data() + offset, kRow), 0) << row;
    EXPECT_EQ(back.data()[offset - 1], std::byte{0});
    EXPECT_EQ(back.data()[offset + kRow], std::byte{0});
  }
}

TEST_F(CudaMemoryTest, KernelsReachAllOfIt) {
  const Buffer pinned = device_->allocate(2 * kLargePinnedBytes, MemoryKind::kPinned);
  for (const size_t offset :
       {size_t{0}, kLargePinnedBytes - 4, kLargePinnedBytes, 2 * kLargePinnedBytes - 4}) {
    auto* value = reinterpret_cast<int32_t*>(pinned.data() + offset);
    *value = 41;
    as_cuda(*stream_).submit("add_one",
                             [&](cudaStream_t handle) { testing::launch_add_one(handle, value); });
    stream_->synchronize();
    EXPECT_EQ(*value, 42) << offset;
  }
}

// Freed memory is no longer pinned or registered: the same address can be allocated again.
TEST_F(CudaMemoryTest, PinnedMemoryIsGivenBack) {
  for (int round = 0; round < 3; ++round) {
    const Buffer pinned = device_->allocate(4 * kLargePinnedBytes, MemoryKind::kPinned);
    stream_->fill(pinned.data(), pinned.size_bytes(), 1);
    stream_->synchronize();
    EXPECT_EQ(pinned.data()[pinned.size_bytes() - 1], std::byte{1});
    cudaPointerAttributes attributes = {};
    ASSERT_EQ(cudaPointerGetAttributes(&attributes, pinned.data() + kLargePinnedBytes),
              cudaSuccess);
    EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  }
  EXPECT_EQ(device_->allocated_bytes(MemoryKind::kPinned), 0u);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace sluice
