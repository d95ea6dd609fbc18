// The device contract (device/device.h) about memory, the same for every backend.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "device/device.h"
#include "support/device_hooks.h"

namespace sluice {
namespace {

constexpr MemoryKind kAllKinds[] = {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice};

class MemoryContract : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = testing::make_device_if_present(GetParam());
    if (device_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
    a_ = device_->make_stream({.name = "a"});
  }

  Buffer device_bytes(size_t num_bytes) {
    return device_->allocate(num_bytes, MemoryKind::kDevice);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> a_;
};

TEST_P(MemoryContract, BuffersAreAlignedAndKnowWhatTheyAre) {
  for (MemoryKind kind : kAllKinds) {
    for (size_t size : {size_t{1}, size_t{255}, size_t{4097}, size_t{3} << 20}) {
      Buffer buffer = device_->allocate(size, kind);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
      EXPECT_EQ(buffer.size_bytes(), size);
      EXPECT_EQ(buffer.kind(), kind);
      a_->fill(buffer.data(), size, 1);  // all of it is writable
      a_->synchronize();
    }
  }
}

TEST_P(MemoryContract, CountersFollowAllocations) {
  for (MemoryKind kind : kAllKinds) {
    const int64_t num_before = device_->num_allocations();
    const size_t before = device_->allocated_bytes(kind);
    Buffer first = device_->allocate(1000, kind);
    {
      Buffer second = device_->allocate(size_t{3} << 20, kind);
      EXPECT_EQ(device_->allocated_bytes(kind), before + 1000 + (size_t{3} << 20));
    }
    EXPECT_EQ(device_->allocated_bytes(kind), before + 1000);
    EXPECT_EQ(device_->peak_allocated_bytes(kind), before + 1000 + (size_t{3} << 20));
    EXPECT_EQ(device_->num_allocations(), num_before + 2);
    first = Buffer();
    EXPECT_EQ(device_->allocated_bytes(kind), before);
  }
}

TEST_P(MemoryContract, BuffersMoveAndGiveBackAtOnce) {
  Buffer first = device_bytes(1000);
  Buffer second = device_bytes(2000);
  std::byte* data = second.data();
  first = std::move(second);  // the 1000 bytes are freed now, not when `second` is destroyed
  EXPECT_EQ(device_->allocated_bytes(MemoryKind::kDevice), 2000u);
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(first.size_bytes(), 2000u);
  Buffer third(std::move(first));
  EXPECT_EQ(third.data(), data);
  third = Buffer();
  EXPECT_EQ(device_->allocated_bytes(MemoryKind::kDevice), 0u);
}

TEST_P(MemoryContract, AnEmptyBufferTakesNothing) {
  Buffer buffer = device_bytes(0);
  EXPECT_EQ(buffer.size_bytes(), 0u);
  EXPECT_EQ(device_->num_allocations(), 0);
}

TEST_P(MemoryContract, WhatDoesNotFitIsSaidInNumbers) {
  for (MemoryKind kind : kAllKinds) {
    for (size_t size : {size_t{1} << 60, ~size_t{0}}) {
      try {
        device_->allocate(size, kind);
        FAIL() << "got " << size << " bytes";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDoesNotFit);
        const std::string text = error.what();
        EXPECT_NE(text.find(memory_kind_name(kind)), std::string::npos) << text;
        EXPECT_NE(text.find("left"), std::string::npos) << text;
      }
      EXPECT_EQ(device_->allocated_bytes(kind), 0u);
    }
  }
}

TEST_P(MemoryContract, AllocationsSayHowFarTheyAre) {
  for (MemoryKind kind : kAllKinds) {
    for (size_t size : {size_t{1000}, (size_t{100} << 20) + 5}) {
      std::vector<size_t> heard;
      const auto on_progress = [&](size_t done, size_t total) {
        EXPECT_EQ(total, size);
        heard.push_back(done);
        EXPECT_GE(device_->num_allocations(), 0);  // may be called during the allocation
      };
      const Buffer buffer = device_->allocate(size, kind, on_progress);
      EXPECT_EQ(buffer.size_bytes(), size);
      ASSERT_FALSE(heard.empty());
      EXPECT_TRUE(std::is_sorted(heard.begin(), heard.end()));
      EXPECT_EQ(heard.back(), size);
    }
  }
}

TEST_P(MemoryContract, AnAllocationThatIsInterruptedLeavesNothingBehind) {
  struct Interrupted {};
  for (MemoryKind kind : kAllKinds) {
    for (size_t size : {size_t{1000}, size_t{100} << 20}) {
      const auto interrupt = [](size_t, size_t) { throw Interrupted(); };
      EXPECT_THROW(device_->allocate(size, kind, interrupt), Interrupted);
      EXPECT_EQ(device_->allocated_bytes(kind), 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, MemoryContract, ::testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice
