// The CPU device beyond the contract: submit, tasks, traces, the simulated link, memory, the
// schedule fuzzer.
//
// The contract itself is in contract_test.cc. Times are only compared with lower bounds, or with
// bounds wide enough for a busy machine.
#include "device/cpu/cpu_stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/clock.h"
#include "device/debug_fill.h"
#include "device/device.h"
#include "device/trace.h"
#include "support/device_hooks.h"
#include "support/hooked_device.h"
#include "support/schedule_fuzzer.h"

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Counts its live copies, to check that a Task owns its captures exactly once. Atomic, since the
// host destroys the moved-from object while the worker may already run the task.
struct Tracked {
  explicit Tracked(std::atomic<int>* num_alive) : num_alive_(num_alive) { ++*num_alive_; }
  Tracked(Tracked&& other) noexcept : num_alive_(other.num_alive_) { ++*num_alive_; }
  Tracked(const Tracked&) = delete;
  ~Tracked() { --*num_alive_; }
  std::atomic<int>* num_alive_;
};

TEST(Task, OwnsItsCallableOnce) {
  ThreadTeam team(1, "test");
  std::atomic<int> num_alive = 0;
  int num_calls = 0;
  {
    Task task([tracked = Tracked(&num_alive), &num_calls](ThreadTeam&) { ++num_calls; });
    EXPECT_EQ(num_alive.load(), 1);
    Task moved(std::move(task));
    EXPECT_EQ(num_alive.load(), 1);
    EXPECT_FALSE(static_cast<bool>(task));  // NOLINT(bugprone-use-after-move): the point
    Task assigned([other = Tracked(&num_alive)](ThreadTeam&) {});
    EXPECT_EQ(num_alive.load(), 2);
    assigned = std::move(moved);
    EXPECT_EQ(num_alive.load(), 1);
    assigned(team);
    EXPECT_EQ(num_calls, 1);
  }
  EXPECT_EQ(num_alive.load(), 0);
}

TEST(Task, TakesMoveOnlyCapturesAndFullSize) {
  ThreadTeam team(1, "test");
  int seen = 0;
  std::array<char, Task::kInlineBytes - 16> payload{};
  payload.back() = 7;
  Task task([payload, out = &seen](ThreadTeam&) { *out = payload.back(); });
  task(team);
  EXPECT_EQ(seen, 7);
  Task owner([value = std::make_unique<int>(5), out = &seen](ThreadTeam&) { *out = *value; });
  owner(team);
  EXPECT_EQ(seen, 5);
}

TEST(CpuStream, RunsTasksInOrderAndDropsCapturesInOrder) {
  const auto device = make_device("cpu");
  const auto stream = device->make_stream({.name = "s"});
  std::vector<int> order;
  std::atomic<int> num_alive = 0;
  for (int i = 0; i < 1000; ++i) {
    as_cpu(*stream).submit("count", [i, &order](ThreadTeam&) { order.push_back(i); });
  }
  as_cpu(*stream).submit("hold", [tracked = Tracked(&num_alive)](ThreadTeam&) {});
  as_cpu(*stream).submit("look", [&](ThreadTeam&) { EXPECT_EQ(num_alive.load(), 0); });
  stream->synchronize();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

// Both devices are of the same kind, but the versions of an event belong to one device.
TEST(CpuStreamDeathTest, RefusesEventsOfAnotherDevice) {
  const auto device = make_device("cpu");
  const auto other = make_device("cpu");
  const auto stream = device->make_stream({.name = "s"});
  const auto event = other->make_event();
  EXPECT_DEATH(stream->record(*event), "stream 's': an event of another device");
  EXPECT_DEATH(stream->wait(*event), "stream 's': an event of another device");
}

TEST(CpuStream, SleepsAndWakesBetweenBursts) {
  const auto device = make_device("cpu");
  const auto stream = device->make_stream({.name = "s"});
  int num_run = 0;
  for (int burst = 0; burst < 200; ++burst) {
    for (int i = 0; i < burst % 5; ++i) {
      as_cpu(*stream).submit("count", [&](ThreadTeam&) { ++num_run; });
    }
    // Close to the time that a worker spins before it sleeps, so that some bursts arrive at the
    // transition.
    std::this_thread::sleep_for(std::chrono::microseconds(burst % 60));
  }
  stream->synchronize();
  EXPECT_EQ(num_run, 400);
}

TEST(CpuStream, KeepsCodeAndContextOfAnErrorAndDropsSkippedTasks) {
  const auto device = make_device("cpu");
  const auto stream = device->make_stream({.name = "s"});
  std::atomic<int> num_alive = 0;
  as_cpu(*stream).submit(
      "load", [](ThreadTeam&) { throw Error(ErrorCode::kIo, "cannot read it", "file x"); });
  as_cpu(*stream).submit("next", [tracked = Tracked(&num_alive)](ThreadTeam&) { FAIL(); });
  try {
    stream->synchronize();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_STREQ(error.what(), "stream 's', op 'load': file x: cannot read it");
  }
  EXPECT_EQ(num_alive.load(), 0);
}

TEST(CpuStream, AnErrorOfAHelperThreadPoisonsTheStream) {
  const auto device = make_device("cpu");
  const auto stream = device->make_stream({.name = "s", .num_threads = 3});
  as_cpu(*stream).submit("helpless", [](ThreadTeam& team) {
    // The worker's tasks wait for the failure, so that a helper is the thread that fails.
    std::atomic<bool> failed{false};
    team.parallel_for(team.num_threads(), [&, worker = std::this_thread::get_id()](int64_t) {
      if (std::this_thread::get_id() != worker && !failed.exchange(true)) {
        throw std::runtime_error("from a helper");
      }
      while (!failed) std::this_thread::yield();
    });
  });
  EXPECT_THROW(stream->synchronize(), Error);
}

TEST(CpuStream, ThreadsComeFromTheOptions) {
  const auto device = make_device("cpu", {.num_threads = 3});
  const auto ask = [&](int num_threads) {
    const auto stream = device->make_stream({.name = "s", .num_threads = num_threads});
    int seen = 0;
    as_cpu(*stream).submit("ask", [&](ThreadTeam& team) { seen = team.num_threads(); });
    stream->synchronize();
    return seen;
  };
  EXPECT_EQ(ask(1), 1);
  EXPECT_EQ(ask(2), 2);
  EXPECT_EQ(ask(0), 3);  // the device's default
}

TEST(CpuStreamDeathTest, ACopyPastTheEndOfADeviceBufferIsCaught) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        const auto device = make_device("cpu");
        const auto stream = device->make_stream({.name = "s"});
        Buffer small = device->allocate(100, MemoryKind::kDevice);
        stream->fill(small.data() + 50, 51, 0);
      },
      "run past the end");
}

// ---- Traces ----

class CollectingSink final : public TraceSink {
 public:
  void take(const std::string& stream_name, std::vector<TraceSpan> spans) override {
    names.push_back(stream_name);
    all.insert(all.end(), spans.begin(), spans.end());
  }
  std::vector<std::string> names;
  std::vector<TraceSpan> all;
};

TEST(CpuTrace, TellsWhatEachStreamRanAndWhen) {
  CollectingSink sink;
  {
    const auto device = make_device("cpu", {.trace = &sink});
    std::vector<std::byte> host(64);
    Buffer buffer = device->allocate(64, MemoryKind::kDevice);
    const auto stream = device->make_stream({.name = "s"});  // destroyed first, with work pending
    const auto event = device->make_event();
    const int64_t before_ns = steady_ns();
    stream->copy({.dst = buffer.data(), .src = host.data(), .num_bytes = 64});
    stream->record(*event);
    stream->wait(*event);
    as_cpu(*stream).submit(
        "nap", [](ThreadTeam&) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
    stream->synchronize();
    const int64_t after_ns = steady_ns();
    ASSERT_EQ(sink.all.size(), 3u);
    EXPECT_STREQ(sink.all[0].op_name, "copy h2d");
    EXPECT_STREQ(sink.all[1].op_name, "wait");
    EXPECT_STREQ(sink.all[2].op_name, "nap");
    int64_t last_ns = before_ns;
    for (const TraceSpan& span : sink.all) {
      EXPECT_LE(last_ns, span.begin_ns);
      EXPECT_LE(span.begin_ns, span.end_ns);
      last_ns = span.end_ns;
    }
    EXPECT_LE(last_ns, after_ns);
    EXPECT_GE(sink.all[2].end_ns - sink.all[2].begin_ns, 5'000'000);
    stream->copy({.dst = host.data(), .src = buffer.data(), .num_bytes = 64});
  }
  ASSERT_EQ(sink.all.size(), 4u);  // the rest was reported when the stream was destroyed
  EXPECT_STREQ(sink.all[3].op_name, "copy d2h");
  EXPECT_EQ(sink.names, (std::vector<std::string>{"s", "s"}));
}

// ---- The simulated link ----

// Seconds until each of `streams` has copied `bytes` to or from the device.
double seconds_to_copy(Device& device, std::vector<Stream*> streams, size_t bytes,
                       const std::vector<bool>& to_device) {
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < streams.size(); ++i) {
    buffers.push_back(device.allocate(bytes, MemoryKind::kDevice));
    buffers.push_back(device.allocate(bytes, MemoryKind::kPinned));
  }
  const int64_t begin_ns = steady_ns();
  for (size_t i = 0; i < streams.size(); ++i) {
    const Buffer& dst = buffers[2 * i + (to_device[i] ? 0 : 1)];
    const Buffer& src = buffers[2 * i + (to_device[i] ? 1 : 0)];
    streams[i]->copy({.dst = dst.data(), .src = src.data(), .num_bytes = bytes});
  }
  for (Stream* stream : streams) stream->synchronize();
  return static_cast<double>(steady_ns() - begin_ns) * 1e-9;
}

// The shortest of up to ten tries; stops early after one below `enough`. Other work on the machine
// can only make a try longer.
template <typename Try>
double least_seconds(double enough, const Try& one_try) {
  double least = one_try();
  for (int i = 1; i < 10 && least > enough; ++i) least = std::min(least, one_try());
  return least;
}

TEST(SimulatedLink, CopiesTakeTheirTimeAndShareOneLinkPerDirection) {
  constexpr double kAlone =
      0.2;  // 5 MiB at 25 MiB/s: long compared with the noise of a busy machine
  const auto device = testing::make_hooked_device("cpu", {}, {.link_bytes_per_second = 25 * kMiB});
  const auto a = device->make_stream({.name = "a"});
  const auto b = device->make_stream({.name = "b"});
  const auto alone = [&] { return seconds_to_copy(*device, {a.get()}, 5 * kMiB, {true}); };
  const auto together = [&](bool b_to_device) {
    return seconds_to_copy(*device, {a.get(), b.get()}, 5 * kMiB, {true, b_to_device});
  };
  const double alone_seconds = least_seconds(1.5 * kAlone, alone);
  EXPECT_GE(alone_seconds, kAlone);
  EXPECT_LE(alone_seconds, 1.5 * kAlone);
  const double same_way = least_seconds(2.5 * kAlone, [&] { return together(true); });
  EXPECT_GE(same_way, 2 * kAlone);
  EXPECT_LE(same_way, 2.5 * kAlone);
  const double both_ways = least_seconds(1.5 * kAlone, [&] { return together(false); });
  EXPECT_GE(both_ways, kAlone);
  EXPECT_LE(both_ways, 1.5 * kAlone);  // one link each way
}

TEST(SimulatedLink, AShortCopyDoesNotWaitForALongOneToEnd) {
  const auto device = testing::make_hooked_device("cpu", {}, {.link_bytes_per_second = 100 * kMiB});
  const auto a = device->make_stream({.name = "a"});
  const auto b = device->make_stream({.name = "b"});
  Buffer device_bytes = device->allocate(21 * kMiB, MemoryKind::kDevice);
  Buffer pinned = device->allocate(21 * kMiB, MemoryKind::kPinned);
  const auto a_done = device->make_event();
  a->copy({.dst = device_bytes.data(), .src = pinned.data(), .num_bytes = 20 * kMiB});
  a->record(*a_done);
  b->copy({.dst = device_bytes.data() + 20 * kMiB, .src = pinned.data(), .num_bytes = kMiB});
  b->synchronize();
  EXPECT_FALSE(a_done->query());
  a->synchronize();
}

TEST(SimulatedLink, StridedCopiesPayForTheBytesTheyMove) {
  const auto device = testing::make_hooked_device("cpu", {}, {.link_bytes_per_second = 100 * kMiB});
  const auto stream = device->make_stream({.name = "s"});
  Buffer device_bytes = device->allocate(2 * kMiB, MemoryKind::kDevice);
  Buffer pinned = device->allocate(8 * kMiB, MemoryKind::kPinned);
  const auto one_try = [&] {
    const int64_t begin_ns = steady_ns();
    stream->copy_2d({.dst = device_bytes.data(),
                     .dst_stride_bytes = 4096,
                     .src = pinned.data(),
                     .src_stride_bytes = 4 * 4096,
                     .row_bytes = 4096,
                     .num_rows = 512});
    stream->synchronize();
    return static_cast<double>(steady_ns() - begin_ns) * 1e-9;
  };
  const double seconds = least_seconds(0.06, one_try);
  EXPECT_GE(seconds, 0.02);  // 2 MiB of the 8 that the rows span
  EXPECT_LE(seconds, 0.06);
}

TEST(SimulatedLink, RefusesARateBelowZero) {
  EXPECT_THROW(testing::make_hooked_device("cpu", {}, {.link_bytes_per_second = -5}), Error);
}

TEST(SimulatedLink, CopiesWithinOneSideAreFree) {
  const auto device = testing::make_hooked_device("cpu", {}, {.link_bytes_per_second = 1024});
  const auto stream = device->make_stream({.name = "s"});
  for (MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned}) {
    Buffer from = device->allocate(kMiB, kind);
    Buffer to = device->allocate(kMiB, kind);
    stream->fill(from.data(), kMiB, 1);
    stream->copy({.dst = to.data(), .src = from.data(), .num_bytes = kMiB});
    stream->synchronize();  // over the link it would take a quarter of an hour
  }
}

// ---- Memory ----

TEST(CpuMemory, FreshDeviceMemoryIsNanInDebugBuilds) {
  if (!kDebugFill) GTEST_SKIP() << "skipped: a release build does not fill";
  const auto device = make_device("cpu");
  for (size_t num_floats : {size_t{10}, kMiB}) {
    Buffer buffer = device->allocate(num_floats * sizeof(float), MemoryKind::kDevice);
    for (size_t i = 0; i < num_floats; i += 7) {
      float value = 0;
      std::memcpy(&value, buffer.data() + i * sizeof(float), sizeof(float));
      ASSERT_TRUE(std::isnan(value)) << i;
    }
  }
}

TEST(CpuMemory, TheLimitIsForDeviceMemoryAndSaysWhatIsLeft) {
  const auto device = make_device("cpu", {.memory_limit_bytes = 10 * kMiB});
  Buffer first = device->allocate(6 * kMiB, MemoryKind::kDevice);
  try {
    device->allocate(5 * kMiB, MemoryKind::kDevice);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDoesNotFit);
    EXPECT_STREQ(error.what(),
                 "5.0 MiB of device memory do not fit: 4.0 MiB of 10.0 MiB are left; ask for less, "
                 "or raise the memory limit");
  }
  Buffer exact = device->allocate(4 * kMiB, MemoryKind::kDevice);
  Buffer elsewhere = device->allocate(20 * kMiB, MemoryKind::kPinned);
  EXPECT_EQ(device->info().total_memory_bytes, 10 * kMiB);
  EXPECT_EQ(device->info().free_memory_bytes, 0u);
}

size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

TEST(CpuMemory, LargeAllocationsAreBackedWhenTouched) {
  const auto device = make_device("cpu");
  const size_t before = resident_bytes();
  Buffer large = device->allocate(512 * kMiB, MemoryKind::kPinned);
  EXPECT_LT(resident_bytes(), before + 64 * kMiB);
  large = Buffer();
  EXPECT_LT(resident_bytes(), before + 64 * kMiB);
}

// ---- The schedule fuzzer ----

TEST(ScheduleFuzzer, ASeedGivesOneScheduleAndChangesNoResult) {
  const auto run = [](uint64_t seed) {
    const auto device = testing::make_hooked_device("cpu", {}, {.schedule_seed = seed});
    const auto stream = device->make_stream({.name = "s"});
    uint64_t value = 1;
    for (uint64_t i = 0; i < 100; ++i) {
      as_cpu(*stream).submit("step", [&value, i](ThreadTeam&) { value = value * 31 + i; });
    }
    stream->synchronize();
    return value;
  };
  const uint64_t expected = run(0);
  for (uint64_t seed : {uint64_t{1}, uint64_t{2}, ~uint64_t{0}}) EXPECT_EQ(run(seed), expected);
}

TEST(ScheduleFuzzer, ZeroIsOffAndOtherSeedsDelay) {
  const auto timed = [](uint64_t seed) {
    testing::ScheduleFuzzer fuzzer(seed, 1, std::chrono::microseconds(0));
    const int64_t begin_ns = steady_ns();
    for (int i = 0; i < 200; ++i) fuzzer.delay();
    return steady_ns() - begin_ns;
  };
  // About a quarter of 200 delays sleep 100 us on average; scheduling can only add to that.
  EXPECT_GT(timed(12345), 2'000'000);
  int64_t least_ns = timed(0);
  for (int i = 0; i < 5; ++i) least_ns = std::min(least_ns, timed(0));
  EXPECT_LT(least_ns, 1'000'000);
}

}  // namespace
}  // namespace sluice
