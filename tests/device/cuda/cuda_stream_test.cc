// The CUDA device beyond the contract: reports of kernels, failed launches, lost contexts, and
// copies that the copy engines cannot make.
//
// contract_test.cc runs on CUDA too; this file tests what only CUDA can get wrong.
#include "device/cuda/cuda_stream.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/clock.h"
#include "core/error.h"
#include "device/cuda/cuda_device.h"
#include "device/trace.h"
#include "support/cuda/test_kernels.h"
#include "support/device_hooks.h"
#include "support/hooked_device.h"

namespace sluice {
namespace {

using namespace testing;  // sluice::testing, the hooks

constexpr int32_t kNumRows = 1000;

class CudaStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    device_ = make_device_if_present("cuda");
    if (device_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
    a_ = device_->make_stream({.name = "a"});
    b_ = device_->make_stream({.name = "b"});
  }

  static void enqueue_rows(Stream& stream, int32_t bad_row) {
    CudaStream& cuda = as_cuda(stream);
    cuda.submit("look_at_rows", [&](cudaStream_t handle) {
      launch_report(handle, cuda.report("look_at_rows", "row {} is bad"), kNumRows, bad_row);
    });
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> a_;
  std::unique_ptr<Stream> b_;
};

using CudaStreamDeathTest = CudaStreamTest;

// ---- Reports of kernels ----

TEST_F(CudaStreamTest, AKernelThatReportsNothingIsFine) {
  for (int i = 0; i < 100; ++i) enqueue_rows(*a_, -1);
  a_->synchronize();
}

TEST_F(CudaStreamTest, AReportIsThrownAtEveryHostWaitAndStopsTheStream) {
  Buffer buffer = device_->allocate(64, MemoryKind::kDevice);
  enqueue_rows(*a_, -1);
  enqueue_rows(*a_, 713);
  enqueue_rows(*a_, 5);  // too late: the first report is kept
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of([&] { a_->synchronize(); }),
              "stream 'a', op 'look_at_rows': row 713 is bad");
  }
  upload(*b_, buffer, std::vector<std::byte>(64, std::byte{1}));
  a_->fill(buffer.data(), 64, 2);
  EXPECT_EQ(download(*b_, buffer), std::vector<std::byte>(64, std::byte{1}));
}

TEST_F(CudaStreamTest, AReportTravelsWithEventsAndNoFurther) {
  auto c = device_->make_stream({.name = "c"});
  auto bystander = device_->make_stream({.name = "bystander"});
  auto a_done = device_->make_event();
  auto b_done = device_->make_event();
  enqueue_rows(*a_, 9);
  a_->record(*a_done);
  b_->wait(*a_done);
  b_->record(*b_done);
  c->wait(*b_done);
  const std::string expected = "stream 'a', op 'look_at_rows': row 9 is bad";
  EXPECT_EQ(error_of([&] { c->synchronize(); }), expected);
  EXPECT_EQ(error_of([&] { b_done->synchronize(); }), expected);
  EXPECT_EQ(error_of([&] { a_done->synchronize(); }), expected);
  bystander->synchronize();
}

TEST_F(CudaStreamTest, AnEventBeforeTheReportIsHealthy) {
  auto before = device_->make_event();
  auto after = device_->make_event();
  enqueue_rows(*a_, -1);
  a_->record(*before);
  b_->wait(*before);
  enqueue_rows(*a_, 3);
  a_->record(*after);
  EXPECT_NE(error_of([&] { after->synchronize(); }), "");
  EXPECT_EQ(error_of([&] { before->synchronize(); }), "");
  EXPECT_EQ(error_of([&] { b_->synchronize(); }), "");
}

TEST_F(CudaStreamTest, AReportOutlivesItsStream) {
  auto done = device_->make_event();
  enqueue_rows(*a_, 2);
  a_->record(*done);
  a_.reset();
  EXPECT_EQ(error_of([&] { done->synchronize(); }), "stream 'a', op 'look_at_rows': row 2 is bad");
}

TEST_F(CudaStreamTest, AKernelOfAGraphReportsToo) {
  enqueue_rows(*a_, -1);
  const std::unique_ptr<Graph> graph = a_->capture([&] { enqueue_rows(*a_, 44); });
  a_->synchronize();
  a_->launch(*graph);
  EXPECT_EQ(error_of([&] { a_->synchronize(); }), "stream 'a', op 'look_at_rows': row 44 is bad");
}

// ---- Launches that fail, contexts that are lost ----

TEST_F(CudaStreamTest, AFailedLaunchPoisonsItsStreamAndNoOther) {
  Buffer buffer = device_->allocate(64, MemoryKind::kDevice);
  upload(*a_, buffer, std::vector<std::byte>(64, std::byte{1}));
  as_cuda(*a_).submit("too_wide", [](cudaStream_t handle) { launch_too_wide(handle); });
  a_->fill(buffer.data(), 64, 2);
  const std::string text = error_of([&] { a_->synchronize(); });
  EXPECT_NE(text.find("stream 'a', op 'too_wide'"), std::string::npos) << text;
  EXPECT_NE(text.find("(cudaErrorInvalid"), std::string::npos) << text;
  EXPECT_EQ(download(*b_, buffer), std::vector<std::byte>(64, std::byte{1}));
}

// In a process of its own, which cannot use the GPU after this error.
TEST_F(CudaStreamDeathTest, ALostContextNamesTheNewestOpsOfAllStreams) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto crash = [&] {
    enqueue_rows(*b_, -1);
    as_cuda(*a_).submit("trap", [](cudaStream_t handle) { launch_trap(handle); });
    for (Stream* stream : {a_.get(), b_.get()}) {
      std::fprintf(stderr, "%s\n", error_of([&] { stream->synchronize(); }).c_str());
    }
    a_.reset();  // without an error, as after any failure
    b_.reset();
    std::_Exit(7);
  };
  EXPECT_EXIT(crash(), ::testing::ExitedWithCode(7),
              "cudaErrorLaunchFailure.*'a': trap.*'b': look_at_rows.*run it again(.|\n)*"
              "cudaErrorLaunchFailure");
}

// ---- Copies that the copy engines cannot make ----

// Enqueueing a copy must not wait for the stream, for any kind of memory: this test would hang.
TEST_F(CudaStreamTest, PageableMemoryIsCopiedInStreamOrder) {
  constexpr size_t kBytes = (size_t{5} << 20) + 3;  // several pieces
  std::vector<std::byte> first(kBytes), second(kBytes), third(kBytes);
  for (size_t i = 0; i < kBytes; ++i) first[i] = static_cast<std::byte>(i % 251);
  Buffer on_device = device_->allocate(kBytes, MemoryKind::kDevice);
  Buffer pinned = device_->allocate(kBytes, MemoryKind::kPinned);
  Gate gate;
  enqueue_gate(*a_, gate);
  a_->copy({.dst = second.data(), .src = first.data(), .num_bytes = kBytes});
  a_->copy({.dst = on_device.data(), .src = second.data(), .num_bytes = kBytes});
  a_->fill(second.data(), kBytes, 0);
  a_->fill(pinned.data(), kBytes, 0);
  a_->copy({.dst = third.data(), .src = on_device.data(), .num_bytes = kBytes});
  a_->copy({.dst = pinned.data(), .src = third.data(), .num_bytes = kBytes});
  EXPECT_EQ(second, std::vector<std::byte>(kBytes));
  gate.open();
  a_->synchronize();
  EXPECT_EQ(second, std::vector<std::byte>(kBytes));
  EXPECT_EQ(third, first);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), pinned.data()));
}

TEST_F(CudaStreamTest, PageableMemoryIsCopiedWithStrides) {
  struct Shape {
    size_t row_bytes, num_rows;
  };
  for (const Shape& shape : {Shape{7, 3}, Shape{1000, 5000}, Shape{(size_t{2} << 20) + 5, 3}}) {
    const size_t host_stride = shape.row_bytes + 9;
    const size_t device_stride = shape.row_bytes + 4;
    std::vector<std::byte> source(host_stride * shape.num_rows);
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i % 249);
    std::vector<std::byte> back(source.size(), std::byte{255});
    std::vector<std::byte> expected = back;
    for (size_t row = 0; row < shape.num_rows; ++row) {
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(row * host_stride), shape.row_bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(row * host_stride));
    }
    Buffer buffer = device_->allocate(device_stride * shape.num_rows, MemoryKind::kDevice);
    a_->copy_2d({.dst = buffer.data(),
                 .dst_stride_bytes = device_stride,
                 .src = source.data(),
                 .src_stride_bytes = host_stride,
                 .row_bytes = shape.row_bytes,
                 .num_rows = shape.num_rows});
    a_->copy_2d({.dst = back.data(),
                 .dst_stride_bytes = host_stride,
                 .src = buffer.data(),
                 .src_stride_bytes = device_stride,
                 .row_bytes = shape.row_bytes,
                 .num_rows = shape.num_rows});
    a_->synchronize();
    EXPECT_EQ(back, expected) << shape.row_bytes;
  }
}

// Row strides beyond the limit of cudaMemcpy2DAsync (cudaDeviceProp::memPitch), as between the
// layers of a large host tier.
TEST_F(CudaStreamTest, RowsMayBeFarApart) {
  constexpr size_t kStrideBytes = size_t{5} << 29;
  constexpr size_t kRowBytes = 4096;
  const Buffer wide = device_->allocate(kStrideBytes + kRowBytes, MemoryKind::kDevice);
  const Buffer host = device_->allocate(2 * kRowBytes, MemoryKind::kPinned);
  const Buffer back = device_->allocate(2 * kRowBytes, MemoryKind::kPinned);
  for (size_t i = 0; i < 2 * kRowBytes; ++i) host.data()[i] = static_cast<std::byte>(i % 251);
  a_->copy_2d({.dst = wide.data(),
               .dst_stride_bytes = kStrideBytes,
               .src = host.data(),
               .src_stride_bytes = kRowBytes,
               .row_bytes = kRowBytes,
               .num_rows = 2});
  a_->copy_2d({.dst = back.data(),
               .dst_stride_bytes = kRowBytes,
               .src = wide.data(),
               .src_stride_bytes = kStrideBytes,
               .row_bytes = kRowBytes,
               .num_rows = 2});
  a_->synchronize();
  EXPECT_TRUE(std::equal(host.data(), host.data() + 2 * kRowBytes, back.data()));
}

TEST_F(CudaStreamTest, KernelsReachPinnedMemoryAtItsAddress) {
  Buffer pinned = device_->allocate(sizeof(int32_t), MemoryKind::kPinned);
  auto* value = reinterpret_cast<int32_t*>(pinned.data());
  *value = 41;
  as_cuda(*a_).submit("add_one", [&](cudaStream_t handle) { launch_add_one(handle, value); });
  a_->synchronize();
  EXPECT_EQ(*value, 42);
}

// ---- Timelines and options ----

class Collector final : public TraceSink {
 public:
  void take(const std::string& stream_name, std::vector<TraceSpan> taken) override {
    EXPECT_EQ(stream_name, "traced");
    spans.insert(spans.end(), taken.begin(), taken.end());
  }
  std::vector<TraceSpan> spans;
};

TEST_F(CudaStreamTest, ATimelineHasEveryOpInOrderAndInHostTime) {
  constexpr int64_t kSlackNs = 1'000'000;  // the two clocks are synchronised to a few microseconds
  Collector collector;
  const auto device = make_device("cuda", {.trace = &collector});
  const Buffer buffer = device->allocate(size_t{64} << 20, MemoryKind::kDevice);
  const auto event = device->make_event();
  const int64_t begin_ns = steady_ns();
  {
    const auto stream = device->make_stream({.name = "traced"});
    stream->fill(buffer.data(), buffer.size_bytes(), 1);
    stream->record(*event);
    stream->wait(*event);
    stream->synchronize();
    EXPECT_EQ(collector.spans.size(), 2u);
    stream->fill(buffer.data(), 1, 2);
  }
  const int64_t end_ns = steady_ns();
  ASSERT_EQ(collector.spans.size(), 3u);
  const char* const names[] = {"fill", "wait", "fill"};
  for (size_t i = 0; i < 3; ++i) {
    const TraceSpan& span = collector.spans[i];
    EXPECT_STREQ(span.op_name, names[i]);
    EXPECT_GE(span.begin_ns, begin_ns - kSlackNs);
    EXPECT_LE(span.begin_ns, span.end_ns);
    EXPECT_LE(span.end_ns, end_ns + kSlackNs);
    if (i > 0) {
      EXPECT_GE(span.begin_ns, collector.spans[i - 1].end_ns - kSlackNs);
    }
  }
  EXPECT_GT(collector.spans[0].end_ns - collector.spans[0].begin_ns, 5'000);  // 64 MiB take a while
}

TEST_F(CudaStreamTest, RefusesOptionsThatCannotBe) {
  EXPECT_THROW(testing::make_hooked_device("cuda", {}, {.link_bytes_per_second = 1 << 20}), Error);
  EXPECT_THROW(make_device("cuda:1000"), Error);
  const auto small = make_device("cuda", {.memory_limit_bytes = 1 << 20});
  const Buffer half = small->allocate(1 << 19, MemoryKind::kDevice);
  try {
    small->allocate((1 << 19) + 1, MemoryKind::kDevice);
    FAIL() << "went over the limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("0.5 MiB of 1.0 MiB are left"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sluice
