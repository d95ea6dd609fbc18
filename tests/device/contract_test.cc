// The device contract (device/device.h) as a test, the same for every backend.
//
// Uses only the contract's functions (copies, fills, events) and the hooks of tests/support, so
// that a new backend needs no change here.
//
// The groups reveal: streams, work that runs early, late or out of order; events, waits for the
// wrong version; copies and fills, bytes outside the range; errors, failures that are lost or that
// reach other streams.
//
// Memory is in memory_test.cc; graphs are in graph_test.cc and graph_join_test.cc. Expected bytes
// are written out by hand or computed by plain loops on the host.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "device/device.h"
#include "support/device_hooks.h"

namespace sluice {
namespace {

using namespace testing;  // sluice::testing, the hooks

constexpr MemoryKind kAllKinds[] = {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice};

std::vector<std::byte> bytes_of(size_t num_bytes, int value) {
  return std::vector<std::byte>(num_bytes, static_cast<std::byte>(value));
}

// 0, 1, 2, ... modulo 251, so that shifted rows do not look alike.
std::vector<std::byte> counting_bytes(size_t num_bytes) {
  std::vector<std::byte> bytes(num_bytes);
  for (size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

// Long enough that a stream that should be waiting would run its next task.
void let_others_run() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

class DeviceContract : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = make_device_if_present(GetParam());
    if (device_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
    a_ = device_->make_stream({.name = "a"});
    b_ = device_->make_stream({.name = "b"});
  }

  Buffer device_bytes(size_t num_bytes) {
    return device_->allocate(num_bytes, MemoryKind::kDevice);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> a_;
  std::unique_ptr<Stream> b_;
};

#define EXPECT_PLANTED(text, message)                              \
  do {                                                             \
    EXPECT_NE((text).find(kFailingOp), std::string::npos) << text; \
    EXPECT_NE((text).find(message), std::string::npos) << text;    \
  } while (false)

// ---- Streams ----

TEST_P(DeviceContract, WorkOfOneStreamRunsInOrder) {
  constexpr size_t kBytes = 4096;
  Buffer work = device_bytes(kBytes);
  std::vector<Buffer> seen;
  for (int i = 0; i < 50; ++i) {
    seen.push_back(device_bytes(kBytes));
    a_->fill(work.data(), kBytes, static_cast<uint8_t>(i));
    a_->copy({.dst = seen.back().data(), .src = work.data(), .num_bytes = kBytes});
  }
  for (int i = 0; i < 50; ++i) EXPECT_EQ(download(*a_, seen[i]), bytes_of(kBytes, i)) << i;
}

TEST_P(DeviceContract, EnqueueReturnsBeforeTheWorkIsDone) {
  Gate gate;
  Buffer buffer = device_bytes(64);
  upload(*a_, buffer, bytes_of(64, 1));
  auto done = device_->make_event();
  enqueue_gate(*a_, gate);
  a_->fill(buffer.data(), 64, 2);
  a_->record(*done);
  let_others_run();
  EXPECT_FALSE(done->query());
  EXPECT_EQ(download(*b_, buffer), bytes_of(64, 1));
  gate.open();
  done->synchronize();
  EXPECT_TRUE(done->query());
  EXPECT_EQ(download(*b_, buffer), bytes_of(64, 2));
}

TEST_P(DeviceContract, StreamsRunSideBySide) {
  Gate gate;
  enqueue_gate(*a_, gate);
  b_->synchronize();  // would hang if b waited for a
  gate.open();
  a_->synchronize();
}

TEST_P(DeviceContract, SynchronizeWaitsForEverythingEnqueued) {
  Buffer buffer = device_bytes(size_t{8} << 20);
  auto host = device_->allocate(buffer.size_bytes(), MemoryKind::kPinned);
  for (int round = 1; round <= 3; ++round) {
    a_->fill(buffer.data(), buffer.size_bytes(), static_cast<uint8_t>(round));
    a_->copy({.dst = host.data(), .src = buffer.data(), .num_bytes = buffer.size_bytes()});
    a_->synchronize();
    EXPECT_EQ(host.data()[buffer.size_bytes() - 1], static_cast<std::byte>(round));
  }
}

TEST_P(DeviceContract, ADyingStreamFinishesItsWork) {
  Buffer buffer = device_bytes(1024);
  Gate gate;
  enqueue_gate(*a_, gate);
  a_->fill(buffer.data(), 1024, 9);
  gate.open();
  a_.reset();
  EXPECT_EQ(download(*b_, buffer), bytes_of(1024, 9));
}

TEST_P(DeviceContract, AStreamKnowsItsNameAndDevice) {
  EXPECT_EQ(a_->name(), "a");
  EXPECT_EQ(&a_->device(), device_.get());
}

// ---- Events ----

TEST_P(DeviceContract, WaitingForANeverRecordedEventReturnsAtOnce) {
  auto never = device_->make_event();
  EXPECT_TRUE(never->query());
  never->synchronize();
  a_->wait(*never);
  a_->synchronize();
}

TEST_P(DeviceContract, AWaitDoesNotWaitForALaterRecord) {
  Gate gate;
  auto event = device_->make_event();
  b_->wait(*event);
  enqueue_gate(*a_, gate);
  a_->record(*event);
  b_->synchronize();  // would hang if the wait took the later version
  gate.open();
  a_->synchronize();
}

TEST_P(DeviceContract, AWaitIsForTheVersionThatExistsAtTheCall) {
  Gate first_gate, second_gate;
  auto event = device_->make_event();
  enqueue_gate(*a_, first_gate);
  a_->record(*event);
  b_->wait(*event);
  enqueue_gate(*a_, second_gate);
  a_->record(*event);
  first_gate.open();
  b_->synchronize();  // would hang if it waited for the second version
  EXPECT_FALSE(event->query());
  second_gate.open();
  event->synchronize();
  EXPECT_TRUE(event->query());
}

TEST_P(DeviceContract, RecordingAgainElsewhereDoesNotReleaseEarlierWaits) {
  Gate gate;
  auto event = device_->make_event();
  auto b_done = device_->make_event();
  auto c = device_->make_stream({.name = "c"});
  enqueue_gate(*a_, gate);
  a_->record(*event);
  b_->wait(*event);
  b_->record(*b_done);
  c->record(*event);
  event->synchronize();  // the newest version, which is c's
  let_others_run();
  EXPECT_FALSE(b_done->query());
  gate.open();
  b_done->synchronize();
}

TEST_P(DeviceContract, AnEventCapturesOnlyWhatWasEnqueuedBefore) {
  Gate gate;
  auto event = device_->make_event();
  a_->record(*event);
  enqueue_gate(*a_, gate);
  event->synchronize();  // would hang if it captured the gate
  gate.open();
  a_->synchronize();
}

TEST_P(DeviceContract, EventsOrderWorkOfTwoStreams) {
  constexpr size_t kBytes = size_t{1} << 20;
  Buffer x = device_bytes(kBytes);
  Buffer y = device_bytes(kBytes);
  auto written = device_->make_event();
  auto read = device_->make_event();
  for (int i = 1; i <= 20; ++i) {
    a_->wait(*read);
    a_->fill(x.data(), kBytes, static_cast<uint8_t>(i));
    a_->record(*written);
    b_->wait(*written);
    b_->copy({.dst = y.data(), .src = x.data(), .num_bytes = kBytes});
    b_->record(*read);
    EXPECT_EQ(download(*b_, y), bytes_of(kBytes, i));
  }
}

TEST_P(DeviceContract, AnEventMayDieWhileWaitsArePending) {
  Gate gate;
  Buffer buffer = device_bytes(64);
  enqueue_gate(*a_, gate);
  a_->fill(buffer.data(), 64, 3);
  {
    auto event = device_->make_event();
    a_->record(*event);
    b_->wait(*event);
  }
  auto other = device_->make_event();  // must not inherit the state of the destroyed event
  b_->record(*other);
  let_others_run();
  EXPECT_FALSE(other->query());
  gate.open();
  EXPECT_EQ(download(*b_, buffer), bytes_of(64, 3));
}

TEST_P(DeviceContract, EventsAreRecordedManyTimes) {
  Buffer x = device_bytes(8);
  auto ping = device_->make_event();
  auto pong = device_->make_event();
  for (int i = 0; i < 3000; ++i) {
    a_->wait(*pong);
    a_->fill(x.data(), 8, static_cast<uint8_t>(i));
    a_->record(*ping);
    b_->wait(*ping);
    b_->fill(x.data(), 4, static_cast<uint8_t>(i + 1));
    b_->record(*pong);
  }
  std::vector<std::byte> expected = bytes_of(8, 2999 % 256);
  for (int i = 0; i < 4; ++i) expected[i] = static_cast<std::byte>(3000 % 256);
  EXPECT_EQ(download(*b_, x), expected);
}

// ---- Copies and fills ----

TEST_P(DeviceContract, CopiesBetweenAllKindsOfMemory) {
  const std::vector<std::byte> expected = counting_bytes(70'001);
  for (MemoryKind from_kind : kAllKinds) {
    for (MemoryKind to_kind : kAllKinds) {
      Buffer from = device_->allocate(expected.size(), from_kind);
      Buffer to = device_->allocate(expected.size(), to_kind);
      upload(*a_, from, expected);
      a_->copy({.dst = to.data(), .src = from.data(), .num_bytes = expected.size()});
      EXPECT_EQ(download(*a_, to), expected)
          << memory_kind_name(from_kind) << " to " << memory_kind_name(to_kind);
    }
  }
}

TEST_P(DeviceContract, CopiesTouchNothingElse) {
  Buffer from = device_bytes(100);
  Buffer to = device_bytes(100);
  upload(*a_, from, counting_bytes(100));
  upload(*a_, to, bytes_of(100, 255));
  a_->copy({.dst = to.data() + 10, .src = from.data() + 20, .num_bytes = 30});
  a_->copy({.dst = to.data(), .src = from.data(), .num_bytes = 0});
  std::vector<std::byte> expected = bytes_of(100, 255);
  for (int i = 0; i < 30; ++i) expected[10 + i] = static_cast<std::byte>(20 + i);
  EXPECT_EQ(download(*a_, to), expected);
}

struct Copy2dCase {
  size_t dst_stride_bytes, src_stride_bytes, row_bytes, num_rows;
};

TEST_P(DeviceContract, StridedCopies) {
  constexpr Copy2dCase kCases[] = {
      {64, 64, 64, 5}, {100, 64, 64, 5}, {64, 100, 64, 5}, {33, 17, 11, 7},
      {50, 40, 3, 1},  {50, 40, 3, 0},   {50, 40, 0, 3},   {300'000, 280'000, 270'000, 3}};
  for (MemoryKind from_kind : {MemoryKind::kPinned, MemoryKind::kDevice}) {
    for (const Copy2dCase& c : kCases) {
      Buffer from =
          device_->allocate(std::max<size_t>(1, c.src_stride_bytes * c.num_rows), from_kind);
      Buffer to = device_bytes(std::max<size_t>(1, c.dst_stride_bytes * c.num_rows));
      const std::vector<std::byte> source = counting_bytes(from.size_bytes());
      std::vector<std::byte> expected = bytes_of(to.size_bytes(), 255);
      for (size_t row = 0; row < c.num_rows; ++row) {
        for (size_t i = 0; i < c.row_bytes; ++i) {
          expected[row * c.dst_stride_bytes + i] = source[row * c.src_stride_bytes + i];
        }
      }
      upload(*a_, from, source);
      upload(*a_, to, bytes_of(to.size_bytes(), 255));
      a_->copy_2d({.dst = to.data(),
                   .dst_stride_bytes = c.dst_stride_bytes,
                   .src = from.data(),
                   .src_stride_bytes = c.src_stride_bytes,
                   .row_bytes = c.row_bytes,
                   .num_rows = c.num_rows});
      EXPECT_EQ(download(*a_, to), expected) << c.row_bytes << " x " << c.num_rows;
    }
  }
}

TEST_P(DeviceContract, FillSetsItsRangeOnly) {
  for (MemoryKind kind : kAllKinds) {
    Buffer buffer = device_->allocate(1000, kind);
    upload(*a_, buffer, bytes_of(1000, 1));
    a_->fill(buffer.data() + 3, 500, 0xAB);
    a_->fill(buffer.data(), 0, 0xCD);
    std::vector<std::byte> expected = bytes_of(1000, 1);
    for (int i = 3; i < 503; ++i) expected[i] = std::byte{0xAB};
    EXPECT_EQ(download(*a_, buffer), expected);
  }
}

// ---- Errors ----

TEST_P(DeviceContract, AFailureSkipsLaterWorkAndIsThrownAtEveryHostWait) {
  Buffer buffer = device_bytes(64);
  upload(*a_, buffer, bytes_of(64, 1));
  enqueue_failure(*a_, "planted for the test");
  a_->fill(buffer.data(), 64, 2);
  for (int i = 0; i < 2; ++i) {
    const std::string text = error_of([&] { a_->synchronize(); });
    EXPECT_PLANTED(text, "planted for the test");
    EXPECT_NE(text.find("'a'"), std::string::npos) << text;  // says which stream
  }
  EXPECT_EQ(download(*b_, buffer), bytes_of(64, 1));
}

TEST_P(DeviceContract, TheFirstErrorIsKept) {
  enqueue_failure(*a_, "the first");
  enqueue_failure(*a_, "the second");
  EXPECT_PLANTED(error_of([&] { a_->synchronize(); }), "the first");
}

TEST_P(DeviceContract, EventsRecordedAfterAFailureArePoisonedAndEarlierOnesAreNot) {
  auto before = device_->make_event();
  auto after = device_->make_event();
  a_->record(*before);
  enqueue_failure(*a_, "planted");
  a_->record(*after);
  EXPECT_EQ(error_of([&] { before->synchronize(); }), "");
  for (int i = 0; i < 2; ++i) EXPECT_PLANTED(error_of([&] { after->synchronize(); }), "planted");
  EXPECT_TRUE(after->query());  // reached, though poisoned
}

TEST_P(DeviceContract, PoisonTravelsWithEvents) {
  Buffer buffer = device_bytes(64);
  auto c = device_->make_stream({.name = "c"});
  auto bystander = device_->make_stream({.name = "bystander"});
  auto a_done = device_->make_event();
  auto b_done = device_->make_event();
  upload(*a_, buffer, bytes_of(64, 1));
  enqueue_failure(*a_, "planted in a");
  a_->record(*a_done);
  b_->wait(*a_done);
  b_->fill(buffer.data(), 64, 2);
  b_->record(*b_done);
  c->wait(*b_done);
  c->fill(buffer.data(), 64, 3);
  for (Stream* stream : {b_.get(), c.get()}) {
    const std::string text = error_of([&] { stream->synchronize(); });
    EXPECT_PLANTED(text, "planted in a");
    EXPECT_NE(text.find("'a'"), std::string::npos)
        << text;  // the origin of the error, not the stream that passed it on
  }
  EXPECT_EQ(download(*bystander, buffer), bytes_of(64, 1));
}

TEST_P(DeviceContract, APoisonedStreamKeepsItsOwnFirstError) {
  auto a_done = device_->make_event();
  enqueue_failure(*a_, "error of a");
  enqueue_failure(*b_, "error of b");
  a_->record(*a_done);
  b_->wait(*a_done);
  EXPECT_PLANTED(error_of([&] { b_->synchronize(); }), "error of b");
}

TEST_P(DeviceContract, AnEventRecordedAgainOnAHealthyStreamIsHealthy) {
  auto event = device_->make_event();
  enqueue_failure(*a_, "planted");
  a_->record(*event);
  EXPECT_PLANTED(error_of([&] { event->synchronize(); }), "planted");
  b_->record(*event);
  event->synchronize();
  b_->wait(*event);
  b_->synchronize();
}

TEST_P(DeviceContract, APoisonedDeviceDiesInPeace) {
  Gate gate;
  auto event = device_->make_event();
  enqueue_gate(*a_, gate);
  enqueue_failure(*a_, "planted");
  a_->record(*event);
  b_->wait(*event);
  enqueue_failure(*b_, "skipped");
  b_->record(*event);
  a_->wait(*event);
  gate.open();
  event.reset();
  a_.reset();
  b_.reset();
  device_.reset();
}

// ---- Itself ----

TEST_P(DeviceContract, InfoIsPlausible) {
  const DeviceInfo info = device_->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.num_cores, 1);
  EXPECT_GT(info.total_memory_bytes, size_t{256} << 20);
  EXPECT_GT(info.free_memory_bytes, 0u);
  EXPECT_LE(info.free_memory_bytes, info.total_memory_bytes);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContract, ::testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace sluice
