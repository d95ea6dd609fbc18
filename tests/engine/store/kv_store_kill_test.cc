// Processes that are killed while their engine writes blocks, and two that share a directory.
//
// A program of its own: it forks, and only before the parent has any thread.
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/store/store_engine.h"
#include "store/store_rig.h"

namespace sluice {
namespace {

using testing::Job;

std::vector<Job> jobs() {
  return {{testing::random_tokens(150, 1), testing::sampled(3, 1)},
          {testing::random_tokens(150, 2), testing::sampled(3, 2)}};
}

// Runs `body` in a child and returns how it ended.
template <typename Body>
pid_t start(const Body& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  body();
  ::_exit(0);
}

int end_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// Killed in the first, the second, ... write of a block.
TEST(KvStoreKilled, LeavesNothingWrong) {
  const testing::TemporaryStore store;
  const EngineOptions options =
      testing::with_store(testing::store_options(KvOffload::kChunked), store);
  int num_killed = 0;
  size_t num_parts = 0;
  for (int64_t call = 0; call < 40; call += 3) {
    const int status = end_of(start([&] {
      FaultyFiles files;
      files.on_write = [&](int64_t number) {
        if (number == call) ::raise(SIGKILL);
        return 0;
      };
      testing::run_with_store(options, jobs(), &files);
    }));
    if (!WIFSIGNALED(status)) continue;
    ++num_killed;
    num_parts += list_store(store.path()).parts.size();
  }
  EXPECT_GT(num_killed, 5);
  EXPECT_GT(num_parts, 0u) << "none was killed while it wrote";
  // Two at once read and write on.
  const auto run = [&] {
    if (testing::run_with_store(options, jobs()).size() != 2) ::_exit(1);
  };
  const pid_t first = start(run), second = start(run);
  EXPECT_EQ(end_of(first), 0);
  EXPECT_EQ(end_of(second), 0);

  const auto warm = testing::run_with_store(options, jobs());
  EXPECT_TRUE(list_store(store.path()).parts.empty());
  testing::expect_all_same(
      warm, testing::run_with_store(testing::store_options(KvOffload::kChunked), jobs()), "");
  for (const RequestOutput& output : warm) EXPECT_EQ(output.num_stored_tokens, 144);
}

}  // namespace
}  // namespace sluice
