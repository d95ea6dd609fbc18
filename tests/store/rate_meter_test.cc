// Rates of transfers that overlap, by a clock that the test sets; and the break-even rule.
#include "store/rate_meter.h"

#include <thread>

#include <gtest/gtest.h>

#include "io/temp_dir.h"
#include "store/store_rig.h"

namespace sluice {
namespace {

using Time = RateMeter::Time;

Time at(double seconds) {
  return Time(std::chrono::hours(1000) +
              std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds)));
}

TEST(RateMeter, CountsTimeInWhichSomethingRuns) {
  RateMeter meter;
  EXPECT_EQ(meter.bytes_per_second(at(0)), 0) << "unknown";
  meter.begin(at(0));
  meter.end(at(1), 100);
  EXPECT_NEAR(meter.bytes_per_second(at(1)), 100, 1e-6);
  EXPECT_NEAR(meter.bytes_per_second(at(20)), 100, 1e-6) << "a pause is not slow";
  // Three at once within two seconds: 600 bytes, not 200 a second.
  RateMeter overlapping;
  overlapping.begin(at(0));
  overlapping.begin(at(0.5));
  overlapping.end(at(1), 200);
  overlapping.begin(at(1));
  overlapping.end(at(2), 200);
  overlapping.end(at(2), 200);
  EXPECT_NEAR(overlapping.bytes_per_second(at(2)), 300, 10) << "older bytes weigh a little less";
}

TEST(RateMeter, FollowsADiskThatBecomesSlow) {
  RateMeter meter;
  double now = 0;
  const auto transfer = [&](double seconds, uint64_t bytes) {
    meter.begin(at(now));
    now += seconds;
    meter.end(at(now), bytes);
  };
  for (int i = 0; i < 100; ++i) transfer(1, 1000);
  EXPECT_NEAR(meter.bytes_per_second(at(now)), 1000, 40);
  for (int i = 0; i < 30; ++i) transfer(1, 10);
  EXPECT_LT(meter.bytes_per_second(at(now)), 150) << "three half-lives";
  now += 400;
  EXPECT_EQ(meter.bytes_per_second(at(now)), 0) << "forgotten, so that the disk is asked again";
  transfer(1, 5000);
  EXPECT_NEAR(meter.bytes_per_second(at(now)), 5000, 1e-6) << "without what was before";
}

TEST(IsWorthReading, ComparesTwoTimes) {
  // 53 GiB of a million tokens: 16 s at 3.5 GB/s, against 335 s of prefill.
  ReadOrCompute choice = {.num_bytes = uint64_t{53} << 30,
                          .num_tokens = 1 << 20,
                          .read_bytes_per_second = 3.5e9,
                          .prefill_tokens_per_second = 3130};
  EXPECT_TRUE(is_worth_reading(choice));
  choice.read_bytes_per_second = 0.2e9;  // 285 s
  EXPECT_TRUE(is_worth_reading(choice));
  choice.read_bytes_per_second = 0.16e9;  // 356 s
  EXPECT_FALSE(is_worth_reading(choice));
  choice.prefill_tokens_per_second = 2900;  // 362 s
  EXPECT_TRUE(is_worth_reading(choice));
  // Equal times: computing needs no disk.
  EXPECT_FALSE(is_worth_reading({.num_bytes = 1000,
                                 .num_tokens = 10,
                                 .read_bytes_per_second = 100,
                                 .prefill_tokens_per_second = 1}));
}

TEST(IsWorthReading, TriesWhatIsUnknown) {
  EXPECT_TRUE(is_worth_reading({.num_bytes = 1000, .num_tokens = 1}));
  EXPECT_TRUE(
      is_worth_reading({.num_bytes = 1000, .num_tokens = 1, .prefill_tokens_per_second = 1e9}));
  EXPECT_TRUE(is_worth_reading({.num_bytes = 1000, .num_tokens = 1, .read_bytes_per_second = 1}));
}

// The rule with a measured rate, on a disk whose every read takes 20 ms more.
TEST(IsWorthReading, IsRightOnASlowDisk) {
  const auto measured = [](std::chrono::milliseconds delay) {
    const TempDir dir;
    FaultyFiles files;
    files.on_read = [=](int64_t) {
      std::this_thread::sleep_for(delay);
      return 0;
    };
    BlockStore store(test_options(dir.path()), files);
    for (const TestBlock& block : make_chain(test_format(), 1, 3)) {
      write_test_block(store, block);
      EXPECT_EQ(read_test_block(store, block), ReadBack::kRight);
    }
    return store.stats().read_bytes_per_second;
  };
  const double fast = measured(std::chrono::milliseconds(0));
  const double slow = measured(std::chrono::milliseconds(20));
  // Six reads a block: the beginning, header, tokens, three layers. A busy machine is slower still.
  EXPECT_LT(slow, 11192 / 0.12 * 1.01);
  EXPECT_GT(fast, slow);
  // A prefill that computes a block's 16 tokens in 50 ms.
  const ReadOrCompute on_slow = {.num_bytes = 11192,
                                 .num_tokens = 16,
                                 .read_bytes_per_second = slow,
                                 .prefill_tokens_per_second = 16 / 0.05};
  EXPECT_FALSE(is_worth_reading(on_slow));
}

}  // namespace
}  // namespace sluice
