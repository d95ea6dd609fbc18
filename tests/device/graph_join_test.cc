// Graphs of several streams (Stream::capture, streams that join), the same for every backend.
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

class GraphJoinContract : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    device_ = make_device_if_present(GetParam());
    if (device_ == nullptr) GTEST_SKIP() << "skipped: no GPU";
    a_ = device_->make_stream({.name = "a"});
    b_ = device_->make_stream({.name = "b"});
    c_ = device_->make_stream({.name = "c"});
    forked_ = device_->make_event();
    b_done_ = device_->make_event();
    c_done_ = device_->make_event();
    host_ = device_->allocate(kBytes, MemoryKind::kPinned);
    for (Buffer* buffer : {&x_, &y_, &z_}) {
      *buffer = device_->allocate(kBytes, MemoryKind::kDevice);
      upload(*a_, *buffer, bytes_of(0));
    }
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a CUDA context does not survive a fork
  }

  void set_host(int value) {
    for (size_t i = 0; i < kBytes; ++i) host_.data()[i] = static_cast<std::byte>(value);
  }

  static void enqueue_copy(Stream& stream, const Buffer& to, const Buffer& from, size_t first = 0,
                           size_t num_bytes = kBytes) {
    stream.copy({.dst = to.data() + first, .src = from.data() + first, .num_bytes = num_bytes});
  }

  // On a: host -> x. On b and c: one half each of x -> y. On a: y -> z.
  void enqueue_diamond() {
    enqueue_copy(*a_, x_, host_);
    a_->record(*forked_);
    b_->wait(*forked_);
    c_->wait(*forked_);
    enqueue_copy(*b_, y_, x_, 0, kBytes / 2);
    enqueue_copy(*c_, y_, x_, kBytes / 2, kBytes / 2);
    b_->record(*b_done_);
    c_->record(*c_done_);
    a_->wait(*b_done_);
    a_->wait(*c_done_);
    enqueue_copy(*a_, z_, y_);
  }
  std::unique_ptr<Graph> capture_diamond() {
    return a_->capture([&] { enqueue_diamond(); });
  }

  std::unique_ptr<Device> device_;
  Buffer host_, x_, y_, z_;
  std::unique_ptr<Event> forked_, b_done_, c_done_;
  std::unique_ptr<Stream> a_, b_, c_;
};

using GraphJoinContractDeathTest = GraphJoinContract;

TEST_P(GraphJoinContract, NothingOfACaptureRuns) {
  set_host(7);
  const std::unique_ptr<Graph> graph = capture_diamond();
  for (const auto* stream : {&a_, &b_, &c_}) (*stream)->synchronize();
  EXPECT_EQ(download(*a_, y_), bytes_of(0));
}

TEST_P(GraphJoinContract, EachLaunchGoesThroughAllStreams) {
  const std::unique_ptr<Graph> graph = capture_diamond();
  for (int value = 1; value <= 50; ++value) {
    set_host(value);
    a_->launch(*graph);
    a_->synchronize();
    ASSERT_EQ(download(*a_, z_), bytes_of(value));
  }
}

// Each launch works on the result of the launch before it.
TEST_P(GraphJoinContract, LaunchesOfOneStreamFollowOneAnother) {
  const std::unique_ptr<Graph> shift = a_->capture([&] {
    a_->record(*forked_);
    b_->wait(*forked_);
    enqueue_copy(*b_, z_, y_);
    b_->record(*b_done_);
    a_->wait(*b_done_);
    a_->record(*forked_);
    c_->wait(*forked_);
    enqueue_copy(*c_, y_, x_);
    c_->record(*c_done_);
    a_->wait(*c_done_);
    a_->fill(x_.data(), kBytes, 0);
  });
  for (int round = 0; round < 20; ++round) {
    a_->fill(x_.data(), kBytes, 5);
    a_->launch(*shift);
    a_->launch(*shift);
    ASSERT_EQ(download(*a_, z_), bytes_of(5));
    a_->launch(*shift);
    ASSERT_EQ(download(*a_, z_), bytes_of(0));
  }
}

TEST_P(GraphJoinContract, AStreamThatTookPartIsFreeAgain) {
  set_host(3);
  const std::unique_ptr<Graph> graph = capture_diamond();
  b_->fill(x_.data(), kBytes, 9);
  EXPECT_EQ(download(*b_, x_), bytes_of(9));
  a_->launch(*graph);
  EXPECT_EQ(download(*a_, z_), bytes_of(3));
}

TEST_P(GraphJoinContract, AnotherStreamMayLaunch) {
  set_host(6);
  const std::unique_ptr<Graph> graph = capture_diamond();
  b_->launch(*graph);
  EXPECT_EQ(download(*b_, z_), bytes_of(6));
}

TEST_P(GraphJoinContract, EventsThatAreRecordedAnewAreAsEver) {
  const std::unique_ptr<Graph> graph = capture_diamond();
  set_host(8);
  Gate gate;
  enqueue_gate(*a_, gate);
  a_->launch(*graph);
  a_->record(*b_done_);
  EXPECT_FALSE(b_done_->query());
  b_->wait(*b_done_);
  gate.open();
  EXPECT_EQ(download(*b_, z_), bytes_of(8));
  b_done_->synchronize();
}

TEST_P(GraphJoinContract, AnErrorWhileRecordingLeavesAllStreamsUsable) {
  const auto fail_inside = [&] {
    a_->capture([&] {
      a_->record(*forked_);
      b_->wait(*forked_);
      b_->fill(x_.data(), kBytes, 1);
      throw std::runtime_error("planted");
    });
  };
  EXPECT_THROW(fail_inside(), std::runtime_error);
  b_->fill(y_.data(), kBytes, 2);  // runs
  EXPECT_EQ(download(*b_, y_), bytes_of(2));
  EXPECT_EQ(download(*a_, x_), bytes_of(0));
  set_host(4);
  const std::unique_ptr<Graph> graph = capture_diamond();
  a_->launch(*graph);
  EXPECT_EQ(download(*a_, z_), bytes_of(4));
}

TEST_P(GraphJoinContract, APoisonedStreamSkipsAllOfALaunch) {
  set_host(5);
  const std::unique_ptr<Graph> graph = capture_diamond();
  enqueue_failure(*a_, "planted for the test");
  a_->launch(*graph);
  EXPECT_THROW(a_->synchronize(), Error);
  EXPECT_EQ(download(*b_, y_), bytes_of(0)) << "and the streams that took part are not poisoned";
  EXPECT_EQ(download(*c_, z_), bytes_of(0));
}

TEST_P(GraphJoinContractDeathTest, AStreamThatJoinedMustBeWaitedFor) {
  EXPECT_DEATH(a_->capture([&] {
    a_->record(*forked_);
    b_->wait(*forked_);
    b_->fill(x_.data(), kBytes, 1);
    b_->record(*b_done_);
    a_->wait(*b_done_);
    b_->fill(y_.data(), kBytes, 1);  // after the work that a waited for
  }),
               "stream 'b' joined the capture of stream 'a' and was not waited for");
}

TEST_P(GraphJoinContractDeathTest, AnEventFromOutsideCannotBeWaitedForInside) {
  b_->record(*b_done_);
  EXPECT_DEATH(a_->capture([&] { a_->wait(*b_done_); }),
               "stream 'a' waits inside a capture for an event from outside");
}

TEST_P(GraphJoinContractDeathTest, AnEventFromInsideHasNoVersionOutside) {
  const std::unique_ptr<Graph> graph = capture_diamond();
  a_->launch(*graph);
  a_->synchronize();
  EXPECT_DEATH(b_->wait(*c_done_), "an event of a capture that has ended; record it anew");
  EXPECT_DEATH(c_done_->synchronize(), "record it anew");
  EXPECT_DEATH(c_done_->query(), "record it anew");
}

INSTANTIATE_TEST_SUITE_P(Devices, GraphJoinContract, ::testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });
INSTANTIATE_TEST_SUITE_P(Devices, GraphJoinContractDeathTest, ::testing::Values("cpu", "cuda"),
                         [](const auto& test) { return std::string(test.param); });

// The CPU's failing op can be recorded (see graph_test.cc): on a stream that joined it fails the
// launching stream, but no other stream unless that waits for it.
TEST(CpuGraphJoin, AnErrorOfAJoinedStreamReachesTheLaunchingOne) {
  const std::unique_ptr<Device> device = make_device("cpu");
  const std::unique_ptr<Stream> a = device->make_stream({.name = "a"});
  const std::unique_ptr<Stream> b = device->make_stream({.name = "b"});
  const std::unique_ptr<Event> forked = device->make_event();
  const std::unique_ptr<Event> joined = device->make_event();
  const Buffer buffer = device->allocate(kBytes, MemoryKind::kDevice);
  upload(*a, buffer, bytes_of(0));
  const std::unique_ptr<Graph> graph = a->capture([&] {
    a->record(*forked);
    b->wait(*forked);
    enqueue_failure(*b, "planted for the test");
    b->record(*joined);
    a->wait(*joined);
    a->fill(buffer.data(), kBytes, 1);
  });
  a->launch(*graph);
  a->launch(*graph);  // skipped
  try {
    a->synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(kFailingOp), std::string::npos) << error.what();
  }
  EXPECT_EQ(download(*b, buffer), bytes_of(0));
}

// A launch does not wait for the streams that took part in the capture. (CPU only: a GPU does not
// guarantee that a blocked stream leaves other streams running.)
TEST(CpuGraphJoin, ALaunchNeedsNoneOfTheStreamsThatTookPart) {
  const std::unique_ptr<Device> device = make_device("cpu");
  const Buffer buffer = device->allocate(kBytes, MemoryKind::kDevice);
  Gate gate;
  const std::unique_ptr<Stream> a = device->make_stream({.name = "a"});
  const std::unique_ptr<Stream> b = device->make_stream({.name = "b"});
  const std::unique_ptr<Event> forked = device->make_event();
  const std::unique_ptr<Event> joined = device->make_event();
  const std::unique_ptr<Graph> graph = a->capture([&] {
    a->record(*forked);
    b->wait(*forked);
    b->fill(buffer.data(), kBytes, 1);
    b->record(*joined);
    a->wait(*joined);
  });
  enqueue_gate(*b, gate);
  a->launch(*graph);
  EXPECT_EQ(download(*a, buffer), bytes_of(1));
  gate.open();
}

}  // namespace
}  // namespace sluice
