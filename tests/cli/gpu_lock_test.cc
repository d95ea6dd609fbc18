// The lock for a shared GPU: waiting, the name of the holder, and release when the holder ends in
// any way.
//
// Needs no GPU: a lock is a file. Holders are child processes, since the lock only excludes other
// processes. Thread rule: the test forks while it has one thread.
#include "cli/gpu/gpu_lock.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "io/temp_dir.h"
#include "sluice/error.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

bool never() { return false; }
void ignore(const std::string&) {}

class GpuLockTest : public ::testing::Test {
 protected:
  virtual std::string path() const { return (directory_.path() / "gpu.lock").string(); }

  // A child that takes the lock, writes a byte, then waits to be killed or for its input to close.
  void start_holder() {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    ASSERT_EQ(pipe(quit_), 0);
    holder_ = fork();
    ASSERT_GE(holder_, 0);
    if (holder_ == 0) {
      close(quit_[1]);
      const GpuLock lock(path(), ignore, never);
      char byte = 1;
      if (write(ready[1], &byte, 1) != 1) _exit(1);
      if (read(quit_[0], &byte, 1) < 0) _exit(1);
      _exit(0);  // without destructors: the kernel must release the lock
    }
    close(ready[1]);
    close(quit_[0]);
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the holder did not get the lock";
    close(ready[0]);
  }

  void end_holder(int signal) {
    if (signal != 0) kill(holder_, signal);
    close(quit_[1]);
    waitpid(holder_, nullptr, 0);
  }

  // Tries `tries` times; false when the lock could not be taken.
  bool can_lock(int tries, std::string* holder = nullptr) {
    try {
      const GpuLock lock(
          path(),
          [&](const std::string& who) {
            if (holder != nullptr) *holder = who;
          },
          [&] { return --tries <= 0; });
      return true;
    } catch (const Interrupted&) {
      return false;
    }
  }

  const TempDir directory_;
  pid_t holder_ = -1;
  int quit_[2] = {-1, -1};
};

TEST_F(GpuLockTest, IsTakenAndGivenBack) {
  EXPECT_TRUE(can_lock(1));
  EXPECT_TRUE(can_lock(1));
}

TEST_F(GpuLockTest, WaitsForAnotherProcessAndNamesIt) {
  start_holder();
  std::string who;
  EXPECT_FALSE(can_lock(2, &who));
  EXPECT_NE(who.find(std::to_string(holder_)), std::string::npos) << who;
  end_holder(0);
  EXPECT_TRUE(can_lock(50));
}

TEST_F(GpuLockTest, AHolderThatIsKilledHoldsNothing) {
  start_holder();
  EXPECT_FALSE(can_lock(1));
  end_holder(SIGKILL);
  EXPECT_TRUE(can_lock(50));
}

TEST_F(GpuLockTest, GoesToTheWaiterWhenTheHolderEnds) {
  start_holder();
  int asked = 0;
  const GpuLock lock(path(), ignore, [&] {
    if (++asked == 2) end_holder(SIGKILL);
    return asked > 100;
  });
  EXPECT_GE(asked, 2);
}

TEST_F(GpuLockTest, AChildOfAHolderDoesNotWaitForItsParent) {
  start_holder();
  setenv("SLUICE_GPU_LOCK_HELD", path().c_str(), 1);
  EXPECT_TRUE(can_lock(1));
  unsetenv("SLUICE_GPU_LOCK_HELD");
  EXPECT_FALSE(can_lock(1));
  end_holder(0);
}

TEST_F(GpuLockTest, AFileThatCannotBeMadeIsNamed) {
  try {
    const GpuLock lock("/proc/no-such-place/gpu.lock", ignore, never);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("SLUICE_LOCK_DIR"), std::string::npos);
  }
}

TEST(GpuLockPath, IsNamedAfterTheGpu) {
  setenv("SLUICE_LOCK_DIR", "/some/dir", 1);
  EXPECT_EQ(gpu_lock_path("GPU-1b3f"), "/some/dir/sluice-GPU-1b3f.lock");
  unsetenv("SLUICE_LOCK_DIR");
  EXPECT_EQ(gpu_lock_path("GPU-1b3f"), "/tmp/sluice-GPU-1b3f.lock");
}

// tools/with-gpu takes the same lock by other means.
class WithGpu : public GpuLockTest {
 protected:
  std::string path() const override { return gpu_lock_path("test"); }
  void SetUp() override { setenv("SLUICE_LOCK_DIR", directory_.path().c_str(), 1); }
  void TearDown() override { unsetenv("SLUICE_LOCK_DIR"); }

  int run(const std::string& words) {
    const std::string tool = (testing::source_dir() / "tools/with-gpu").string();
    const int status = std::system((tool + " " + words).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(WithGpu, RunsTheCommandAndPassesItsExitCodeOn) {
  EXPECT_EQ(run("--id test true"), 0);
  EXPECT_EQ(run("--id test -- sh -c 'exit 7'"), 7);
  EXPECT_EQ(run("--id test"), 2) << "no command";
}

TEST_F(WithGpu, KeepsOthersOutWhileItRuns) {
  const std::string file = gpu_lock_path("test");
  const std::string probe = "flock --nonblock " + file + " true";
  EXPECT_EQ(run("--id test sh -c '! " + probe + "'"), 0) << "another process got the lock";
  EXPECT_EQ(std::system(probe.c_str()), 0) << "it was not given back";
}

TEST_F(WithGpu, WaitsForALockOfThisProgram) {
  const std::string done = (directory_.path() / "done").string();
  start_holder();
  const pid_t waiter = fork();
  if (waiter == 0) _exit(run("--id test touch " + done + " 2> " + done + ".message"));
  const auto message = [&] { return slurp(done + ".message"); };
  for (int i = 0; i < 200 && message().empty(); ++i) usleep(50'000);
  EXPECT_NE(message().find("waiting for test: process " + std::to_string(holder_)),
            std::string::npos)
      << message();
  EXPECT_FALSE(std::filesystem::exists(done)) << "it did not wait";
  end_holder(SIGKILL);
  int status = 0;
  waitpid(waiter, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::exists(done));
}

// CUDA's device N is the N-th of CUDA_VISIBLE_DEVICES, here of a machine whose GPU n is "GPU-n".
TEST_F(WithGpu, LocksTheGpuThatCudaCallsByThisNumber) {
  const std::string program = (directory_.path() / "nvidia-smi").string();
  std::ofstream(program) << "#!/bin/sh\necho \"GPU-${3#--id=}\"\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const std::string path = std::string(getenv("PATH"));
  setenv("PATH", (directory_.path().string() + ":" + path).c_str(), 1);
  const auto locks = [&](const char* number, const char* name) {
    return run("--device " + std::string(number) + " test -e " + gpu_lock_path(name));
  };
  setenv("CUDA_VISIBLE_DEVICES", "3,5", 1);
  EXPECT_EQ(locks("0", "GPU-3"), 0);
  EXPECT_EQ(locks("1", "GPU-5"), 0);
  EXPECT_EQ(locks("2", "GPU-2"), 2);
  setenv("CUDA_VISIBLE_DEVICES", "3", 1);
  EXPECT_EQ(locks("1", "GPU-3"), 2) << "the lock of a GPU that CUDA does not show";
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(locks("1", "GPU-1"), 0);
  setenv("PATH", path.c_str(), 1);
}

TEST_F(WithGpu, NestedHoldersDoNotWaitForEachOther) {
  const std::string tool = (testing::source_dir() / "tools/with-gpu").string();
  EXPECT_EQ(run("--id test " + tool + " --id test true"), 0);
}

}  // namespace
}  // namespace sluice::cli
