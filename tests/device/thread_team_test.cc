// ThreadTeam: every task runs exactly once, errors reach the caller, helpers wake up after
// sleeping, and helpers that stall are left out.
#include "device/host/thread_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace sluice {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

class ThreadTeamOf : public ::testing::TestWithParam<int> {};

TEST_P(ThreadTeamOf, ParallelForRunsEveryTaskOnce) {
  ThreadTeam team(GetParam(), "test");
  for (int64_t num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> calls(num_tasks);  // not atomic: parallel_for must order it
    team.parallel_for(num_tasks, [&](int64_t task) { ++calls[task]; });
    EXPECT_EQ(calls, std::vector<int>(num_tasks, 1)) << num_tasks;
  }
}

TEST_P(ThreadTeamOf, HelpersWakeUpAfterSleeping) {
  ThreadTeam team(GetParam(), "test");
  int64_t total = 0;
  for (int round = 0; round < 100; ++round) {
    std::atomic<int64_t> sum{0};
    team.parallel_for(10, [&](int64_t task) { sum += task; });
    total += sum;
    // Close to the time that helpers spin before they sleep, so that some rounds start at the
    // transition.
    std::this_thread::sleep_for(std::chrono::microseconds(round));
  }
  EXPECT_EQ(total, 100 * 45);
}

TEST_P(ThreadTeamOf, ManyShortRoundsLoseNothing) {
  ThreadTeam team(GetParam(), "test");
  std::vector<int> calls(7);
  for (int round = 0; round < 20'000; ++round) {
    team.parallel_for(7, [&](int64_t task) { ++calls[task]; });
  }
  EXPECT_EQ(calls, std::vector<int>(7, 20'000));
}

TEST_P(ThreadTeamOf, TheWorkerSleepsWhenATaskIsSlow) {
  ThreadTeam team(GetParam(), "test");
  std::vector<int> done(GetParam());
  team.parallel_for(GetParam(), [&](int64_t task) {
    std::this_thread::sleep_for(milliseconds(2 * task));
    done[task] = 1;
  });
  EXPECT_EQ(done, std::vector<int>(GetParam(), 1));
}

TEST_P(ThreadTeamOf, AnErrorOfAnyTaskIsThrownAndTheTeamGoesOn) {
  ThreadTeam team(GetParam(), "test");
  for (int64_t failing = 0; failing < 20; ++failing) {
    std::atomic<int> num_running{0};
    const auto task = [&](int64_t index) {
      ++num_running;
      if (index == failing) {
        --num_running;
        throw std::runtime_error(std::to_string(failing));
      }
      --num_running;
    };
    try {
      team.parallel_for(20, task);
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), std::to_string(failing));
    }
    EXPECT_EQ(num_running, 0);  // thrown after all begun tasks had ended
  }
  int num_tasks_run = 0;
  team.parallel_for(1, [&](int64_t) { ++num_tasks_run; });
  EXPECT_EQ(num_tasks_run, 1);
}

// On a machine whose cores are busy, helpers are descheduled in the middle of a task again and
// again. Here the helpers' tasks sleep instead.
TEST(ThreadTeam, HelpersThatStallAreLeftAloneAndComeBackWhenTheyHelp) {
  ThreadTeam team(2, "test");
  const std::thread::id worker = std::this_thread::get_id();
  std::atomic<bool> stalling{true};
  std::atomic<int> num_helped{0};
  const auto round = [&] {
    team.parallel_for(8, [&](int64_t) {
      std::this_thread::sleep_for(microseconds(100));
      if (std::this_thread::get_id() == worker) return;
      ++num_helped;
      if (stalling) std::this_thread::sleep_for(milliseconds(20));
    });
  };
  // Alone a round takes about 1 ms. With a helper that stalls in each of them it would be 20.
  for (int i = 0; i < 300; ++i) round();
  EXPECT_LT(num_helped, 60);
  stalling = false;
  num_helped = 0;
  const auto deadline = steady_clock::now() + std::chrono::seconds(100);
  while (num_helped < 400 && steady_clock::now() < deadline) round();
  EXPECT_GE(num_helped, 400);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamOf, ::testing::Values(1, 2, 3, 5));

TEST(ThreadTeam, TeamsWithoutWorkDieInPeace) {
  for (int i = 0; i < 50; ++i) ThreadTeam team(1 + i % 4, "test");
}

constexpr int64_t kMillisecond = 1'000'000;

// A round whose work two threads shared evenly.
TeamRound even_round(int64_t lost_ns) {
  return {.own_tasks = 4, .other_tasks = 4, .own_ns = kMillisecond, .lost_ns = lost_ns};
}

TEST(TeamGain, WaitingLessThanHelpersSaveKeepsTheTeamTogether) {
  TeamGain gain;
  for (int64_t i = 0; i < 1000; ++i) {
    gain.add(even_round(kMillisecond * 9 / 10), i);
    ASSERT_FALSE(gain.still_alone(i));
  }
  gain.add(even_round(5 * kMillisecond), 1000);  // one stall costs less than the helpers saved
  EXPECT_FALSE(gain.still_alone(1000));
}

TEST(TeamGain, DebtMakesTheWorkerAloneForTwiceAsLongEachTime) {
  TeamGain gain;
  int64_t time_ns = 1;
  int64_t alone_ns = TeamGain::kFirstAloneNs;
  for (int trial = 0; trial < 8; ++trial) {
    gain.add(even_round(5 * kMillisecond), time_ns);
    EXPECT_TRUE(gain.still_alone(time_ns + alone_ns - 1));
    time_ns += alone_ns;
    EXPECT_FALSE(gain.still_alone(time_ns));
    alone_ns = std::min(2 * alone_ns, TeamGain::kLongestAloneNs);
  }
}

TEST(TeamGain, ATrialThatPaysStartsFromTheShortestTime) {
  TeamGain gain;
  for (int64_t time_ns : {1, 2, 3}) gain.add(even_round(5 * kMillisecond), time_ns);
  const int64_t later_ns = 2 * TeamGain::kLongestAloneNs;
  ASSERT_FALSE(gain.still_alone(later_ns));
  for (int i = 0; i < 20; ++i) gain.add(even_round(0), later_ns);
  while (!gain.still_alone(later_ns)) gain.add(even_round(5 * kMillisecond), later_ns);
  EXPECT_TRUE(gain.still_alone(later_ns + TeamGain::kFirstAloneNs - 1));
  EXPECT_FALSE(gain.still_alone(later_ns + TeamGain::kFirstAloneNs));
}

TEST(TeamGain, ARoundWithoutTasksOfTheWorkerSaysNothing) {
  TeamGain gain;
  for (int i = 0; i < 10; ++i) gain.add({.other_tasks = 4, .lost_ns = 100 * kMillisecond}, 1);
  EXPECT_FALSE(gain.still_alone(1));
}

}  // namespace
}  // namespace sluice
