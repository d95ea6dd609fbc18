// Graphs of the device contract (Stream::capture and launch), the same for every backend.
//
// Uses only the contract's functions and the hooks of tests/support, as contract_test.cc.
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/device.h"
#include "support/device_hooks.h"

namespace sluice {
namespace {

using namespace testing;  // sluice::testing, the hooks

constexpr size_t kBytes = 4096;

std::vector<std::byte> bytes_of(int value) {
  return std::vector<std::byte>(kBytes, static_cast<std::byte>(value));
}

class GraphContract : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = make_device_if_present(GetParam());
    if (device_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
    stream_ = device_->make_stream({.name = "a"});
    host_ = device_->allocate(kBytes, MemoryKind::kPinned);
    x_ = device_->allocate(kBytes, MemoryKind::kDevice);
    y_ = device_->allocate(kBytes, MemoryKind::kDevice);
    for (const Buffer* buffer : {&host_, &x_, &y_}) upload(*stream_, *buffer, bytes_of(0));
  }

  void set_host(int value) {
    for (size_t i = 0; i < kBytes; ++i) host_.data()[i] = static_cast<std::byte>(value);
  }

  void enqueue_copy(const Buffer& to, const Buffer& from) {
    stream_->copy({.dst = to.data(), .src = from.data(), .num_bytes = kBytes});
  }

  // host -> x -> y.
  std::unique_ptr<Graph> capture_copies() {
    return stream_->capture([&] {
      enqueue_copy(x_, host_);
      enqueue_copy(y_, x_);
    });
  }

  std::unique_ptr<Device> device_;
  Buffer host_, x_, y_;
  std::unique_ptr<Stream> stream_;
};

TEST_P(GraphContract, CapturedWorkDoesNotRun) {
  set_host(7);
  const std::unique_ptr<Graph> graph = capture_copies();
  EXPECT_EQ(download(*stream_, y_), bytes_of(0));
}

TEST_P(GraphContract, ALaunchReadsWhatIsInMemoryThen) {
  const std::unique_ptr<Graph> graph = capture_copies();
  for (int value = 1; value <= 5; ++value) {
    set_host(value);
    stream_->launch(*graph);
    stream_->synchronize();  // before the host writes again
    EXPECT_EQ(download(*stream_, y_), bytes_of(value));
  }
}

TEST_P(GraphContract, ALaunchStandsInStreamOrder) {
  const std::unique_ptr<Graph> graph = stream_->capture([&] { enqueue_copy(y_, x_); });
  stream_->fill(x_.data(), kBytes, 1);
  stream_->launch(*graph);
  stream_->fill(x_.data(), kBytes, 2);
  EXPECT_EQ(download(*stream_, y_), bytes_of(1));
  stream_->launch(*graph);
  stream_->fill(y_.data(), kBytes / 2, 3);
  std::vector<std::byte> expected = bytes_of(2);
  std::fill_n(expected.begin(), kBytes / 2, std::byte{3});
  EXPECT_EQ(download(*stream_, y_), expected);
}

TEST_P(GraphContract, EventsCaptureLaunches) {
  Gate gate;
  auto done = device_->make_event();
  auto other = device_->make_stream({.name = "b"});
  set_host(4);
  const std::unique_ptr<Graph> graph = capture_copies();
  enqueue_gate(*stream_, gate);
  stream_->launch(*graph);
  stream_->record(*done);
  other->wait(*done);
  EXPECT_FALSE(done->query());
  gate.open();
  EXPECT_EQ(download(*other, y_), bytes_of(4));
}

TEST_P(GraphContract, StridedCopiesAndFillsAreRecordedToo) {
  set_host(9);
  const std::unique_ptr<Graph> graph = stream_->capture([&] {
    stream_->fill(x_.data(), kBytes, 1);
    stream_->copy_2d({.dst = x_.data(),
                      .dst_stride_bytes = 64,
                      .src = host_.data(),
                      .src_stride_bytes = 32,
                      .row_bytes = 16,
                      .num_rows = kBytes / 64});
  });
  for (int launch = 0; launch < 2; ++launch) {
    stream_->fill(x_.data(), kBytes, 5);
    stream_->launch(*graph);
    std::vector<std::byte> expected = bytes_of(1);
    for (size_t i = 0; i < kBytes; ++i) {
      if (i % 64 < 16) expected[i] = std::byte{9};
    }
    EXPECT_EQ(download(*stream_, x_), expected);
  }
}

TEST_P(GraphContract, GraphsOfOneStreamStandBesideEachOther) {
  const std::unique_ptr<Graph> first = stream_->capture([&] { stream_->fill(x_.data(), 1, 1); });
  const std::unique_ptr<Graph> second = stream_->capture([&] { enqueue_copy(y_, x_); });
  stream_->launch(*first);
  stream_->launch(*second);
  stream_->launch(*first);
  std::vector<std::byte> expected = bytes_of(0);
  expected[0] = std::byte{1};
  EXPECT_EQ(download(*stream_, y_), expected);
}

TEST_P(GraphContract, AnErrorWhileRecordingLeavesTheStreamUsable) {
  const auto fail_inside = [&] {
    stream_->capture([&] {
      stream_->fill(x_.data(), kBytes, 1);
      throw std::runtime_error("planted");
    });
  };
  EXPECT_THROW(fail_inside(), std::runtime_error);
  EXPECT_EQ(download(*stream_, x_), bytes_of(0));
  stream_->fill(x_.data(), kBytes, 2);  // runs
  EXPECT_EQ(download(*stream_, x_), bytes_of(2));
  set_host(3);
  const std::unique_ptr<Graph> graph = capture_copies();
  stream_->launch(*graph);
  EXPECT_EQ(download(*stream_, y_), bytes_of(3));
}

TEST_P(GraphContract, APoisonedStreamSkipsLaunches) {
  auto other = device_->make_stream({.name = "b"});
  const std::unique_ptr<Graph> graph = stream_->capture([&] { stream_->fill(x_.data(), 1, 1); });
  enqueue_failure(*stream_, "planted for the test");
  stream_->launch(*graph);
  EXPECT_THROW(stream_->synchronize(), Error);
  EXPECT_EQ(download(*other, x_), bytes_of(0));
}

TEST_P(GraphContract, NothingIsAllocatedFromTheDevice) {
  const int64_t before = device_->num_allocations();
  const std::unique_ptr<Graph> graph = capture_copies();
  stream_->launch(*graph);
  stream_->synchronize();
  EXPECT_EQ(device_->num_allocations(), before);
}

INSTANTIATE_TEST_SUITE_P(Devices, GraphContract, ::testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

// An op that fails inside a graph fails the stream under the op's name. CPU only: its failure hook
// is an op that can be recorded, that of CUDA is not.
TEST(CpuGraph, AnErrorInsideNamesTheOp) {
  const std::unique_ptr<Device> device = make_device("cpu");
  const std::unique_ptr<Stream> stream = device->make_stream({.name = "a"});
  const Buffer buffer = device->allocate(kBytes, MemoryKind::kDevice);
  upload(*stream, buffer, bytes_of(0));
  const std::unique_ptr<Graph> graph = stream->capture([&] {
    enqueue_failure(*stream, "planted for the test");
    stream->fill(buffer.data(), kBytes, 1);
  });
  stream->synchronize();
  stream->launch(*graph);
  try {
    stream->synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(kFailingOp), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sluice
