// Processes that are killed while they write, and several that write, read and evict in one
// directory at once. Children share nothing with the test but the directory.
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/temp_dir.h"
#include "store/store_rig.h"
#include "support/sanitizer.h"

namespace sluice {
namespace {

// Large enough that a kill hits the middle of a file.
constexpr StoreLayout kLargeLayout = {.block_tokens = 16, .num_layers = 4, .layer_bytes = 300'000};
constexpr uint64_t kLargeFile = 8192 + 4 * 300'000;

// Runs a function in a child process; its result is the exit status.
pid_t start_child(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  return child;
}

int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Slow writes, so that most of the time a file is half-written.
[[noreturn]] void write_for_ever(const BlockStoreOptions& options, uint32_t seed) {
  FaultyFiles files;
  files.on_write = [](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    return 0;
  };
  BlockStore store(options, files);
  for (;; ++seed) {
    for (const TestBlock& block : make_chain(options.format, seed, 3)) {
      write_test_block(store, block);
    }
  }
}

TEST(KilledWriter, LeavesWholeBlocksOrNone) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path(), test_format("killed", kLargeLayout));
  options.max_bytes = 40 * kLargeFile;
  const int num_kills = kSanitized ? 6 : 15;
  size_t num_parts = 0;
  for (int kill_number = 0; kill_number < num_kills; ++kill_number) {
    const auto seed = static_cast<uint32_t>(1000 * kill_number);
    const pid_t child = start_child([&]() -> int { write_for_ever(options, seed); });
    // Until it writes a file, which takes 18 ms, and then a time that differs from kill to kill.
    while (list_store(dir.path()).parts.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(4 * (kill_number % 6)));
    kill(child, SIGKILL);
    EXPECT_EQ(status_of(child), 128 + SIGKILL);

    const StoreListing listing = list_store(dir.path());
    num_parts += listing.parts.size();
    StoreFiles files;
    for (const StoredFile& file : listing.blocks) {
      EXPECT_EQ(check_stored_file(files, file), "") << file.path.whole();
    }
    BlockStore store(options);
    for (const TestBlock& block : make_chain(options.format, seed, 3)) {
      EXPECT_NE(read_test_block(store, block), ReadBack::kWrong);
    }
    EXPECT_EQ(store.stats().num_bad, 0);
    EXPECT_TRUE(list_store(dir.path()).parts.empty()) << "the next process removes the rest";
  }
  EXPECT_GT(num_parts, 0u) << "no kill hit a file that was being written";
}

// Returns 0 if every read was right or a miss, and some were right.
int write_read_and_evict(const BlockStoreOptions& options, uint32_t seed, int rounds) {
  BlockStore store(options);
  std::mt19937 random(seed);
  int num_right = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto chain = make_chain(options.format, random() % 8, 4);
    for (const TestBlock& block : chain) {
      if (random() % 2 == 0) write_test_block(store, block);
      const ReadBack read = read_test_block(store, block);
      if (read == ReadBack::kWrong) return 1;
      num_right += read == ReadBack::kRight;
    }
  }
  const StoreStats stats = store.stats();
  if (stats.num_bad > 0 || !stats.is_writing) return 2;
  if (stats.num_evicted == 0) return 3;
  return num_right > rounds / 4 ? 0 : 4;
}

TEST(ManyProcesses, ShareADirectory) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path());
  options.max_bytes = 14 * 11192;
  std::vector<pid_t> children;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    children.push_back(
        start_child([&] { return write_read_and_evict(options, seed, kSanitized ? 100 : 400); }));
  }
  BlockStoreOptions read_only = options;
  read_only.mode = StoreMode::kReadOnly;
  BlockStore store(read_only);
  std::mt19937 random(99);
  int status = 0;
  while (waitpid(children[0], &status, WNOHANG) == 0) {
    for (const TestBlock& block : make_chain(options.format, random() % 8, 4)) {
      EXPECT_NE(read_test_block(store, block), ReadBack::kWrong) << "a reader beside the writers";
    }
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (const pid_t child : {children[1], children[2]}) EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(store.stats().num_bad, 0);
  const StoreListing listing = list_store(dir.path());
  EXPECT_TRUE(listing.parts.empty());
  StoreFiles files;
  for (const StoredFile& file : listing.blocks) EXPECT_EQ(check_stored_file(files, file), "");
}

}  // namespace
}  // namespace sluice
