// Ranks that end passes at one part, whoever is late: counts of threads, without a device.
#include "device/host/part_limit.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "io/expect_error.h"

namespace sluice {
namespace {

constexpr int32_t kNumRanks = 3;
constexpr int64_t kNumParts = 8;  // of a pass that is not cancelled
constexpr int kNumPasses = 300;

struct Group {
  Group() : memory(RankGroup::memory_bytes(options) / 64 + 1), group(bytes(), options) {}

  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(memory)); }

  const RankGroup::Options options{.num_ranks = kNumRanks, .slot_bytes = 64};
  std::vector<Line> memory;
  RankGroup group;
};

void pause(std::mt19937& random) {
  if (random() % 4 == 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
  }
}

// As PassFollower: the parts that were enqueued of each pass, which `starts` lets begin.
void follow(PartLimit& limit, std::vector<std::atomic<bool>>& starts, uint32_t seed,
            std::vector<int64_t>& parts) {
  std::mt19937 random(seed);
  int64_t total = 0;
  for (std::atomic<bool>& started : starts) {
    while (!started.load(std::memory_order_acquire)) std::this_thread::yield();
    int64_t& count = parts.emplace_back(0);
    bool goes_on = true;
    while (goes_on && count < kNumParts) {
      pause(random);
      ++count;
      goes_on = limit.may_go_on(++total);
    }
  }
}

// As PassPacer, which cancels pass i at its part i % (kNumParts + 2), so also never.
std::vector<int64_t> lead(PartLimit& limit, std::vector<std::atomic<bool>>& starts) {
  std::mt19937 random(1);
  std::vector<int64_t> parts;
  for (int pass = 0; pass < kNumPasses; ++pass) {
    limit.begin_pass();
    starts[static_cast<size_t>(pass)].store(true, std::memory_order_release);
    int64_t& count = parts.emplace_back(0);
    bool goes_on = true;
    while (goes_on && count < kNumParts) {
      pause(random);
      if (++count == 1 + pass % (kNumParts + 2)) limit.end();
      goes_on = limit.advance();
    }
  }
  return parts;
}

TEST(PartLimit, AllRanksEnqueueTheSameParts) {
  Group ranks;
  PartLimit limit(ranks.group);
  std::vector<std::atomic<bool>> starts(kNumPasses);
  std::vector<std::vector<int64_t>> others(kNumRanks - 1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < others.size(); ++i) {
    threads.emplace_back([&, i] { follow(limit, starts, static_cast<uint32_t>(i), others[i]); });
  }
  const std::vector<int64_t> first = lead(limit, starts);
  for (std::thread& thread : threads) thread.join();
  for (const auto& other : others) EXPECT_EQ(other, first);
  for (int pass = 0; pass < kNumPasses; ++pass) {
    // The part that is being enqueued, and one more that others may have.
    const int64_t last = std::min<int64_t>(2 + pass % (kNumParts + 2), kNumParts);
    EXPECT_EQ(first[static_cast<size_t>(pass)], last) << "pass " << pass;
  }
}

TEST(PartLimit, AFailureEndsWaits) {
  Group ranks;
  PartLimit limit(ranks.group);
  limit.begin_pass();
  EXPECT_TRUE(limit.may_go_on(1));
  ranks.group.fail(2, "is gone");
  expect_error_with(ErrorCode::kDevice, [&] { limit.may_go_on(2); }, {"is gone"});
  limit.end();
  EXPECT_TRUE(limit.advance());
  expect_error_with(ErrorCode::kDevice, [&] { limit.advance(); }, {"is gone"});
}

}  // namespace
}  // namespace sluice
