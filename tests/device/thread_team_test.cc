// ThreadTeam: every share and every task exactly once, errors brought home, rounds after sleeps.
#include "device/cpu/thread_team.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace sluice {
namespace {

class ThreadTeamOf : public ::testing::TestWithParam<int> {};

TEST_P(ThreadTeamOf, RunCallsEveryThreadOnce) {
  ThreadTeam team(GetParam(), "test");
  EXPECT_EQ(team.num_threads(), GetParam());
  for (int round = 0; round < 300; ++round) {
    std::vector<int> calls(GetParam());  // not atomic: run must order it
    team.run([&](int thread_index, int num_threads) {
      EXPECT_EQ(num_threads, GetParam());
      ++calls[thread_index];
    });
    EXPECT_EQ(calls, std::vector<int>(GetParam(), 1));
  }
}

TEST_P(ThreadTeamOf, ParallelForRunsEveryTaskOnce) {
  ThreadTeam team(GetParam(), "test");
  for (int64_t num_tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> calls(num_tasks);
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
    // Around the time that helpers spin before they sleep, so that some rounds hit the change.
    std::this_thread::sleep_for(std::chrono::microseconds(round));
  }
  EXPECT_EQ(total, 100 * 45);
}

TEST_P(ThreadTeamOf, TheWorkerSleepsWhenAHelperIsSlow) {
  ThreadTeam team(GetParam(), "test");
  std::vector<int> done(GetParam());
  team.run([&](int thread_index, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * thread_index));
    done[thread_index] = 1;
  });
  EXPECT_EQ(done, std::vector<int>(GetParam(), 1));
}

TEST_P(ThreadTeamOf, AnErrorOfAnyThreadIsThrownAndTheTeamGoesOn) {
  ThreadTeam team(GetParam(), "test");
  for (int failing = 0; failing < GetParam(); ++failing) {
    std::atomic<int> num_finished{0};
    try {
      team.run([&](int thread_index, int) {
        if (thread_index == failing) throw std::runtime_error(std::to_string(failing));
        ++num_finished;
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), std::to_string(failing));
    }
    EXPECT_EQ(num_finished, GetParam() - 1);  // thrown after all had finished
  }
  int num_tasks_run = 0;
  team.parallel_for(1, [&](int64_t) { ++num_tasks_run; });
  EXPECT_EQ(num_tasks_run, 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamOf, ::testing::Values(1, 2, 3, 5));

TEST(ThreadTeam, TeamsWithoutWorkDieInPeace) {
  for (int i = 0; i < 50; ++i) ThreadTeam team(1 + i % 4, "test");
}

}  // namespace
}  // namespace sluice
