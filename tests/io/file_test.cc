// Reading whole files, and writing that leaves the old file or the whole new one, also on a full
// disk.
#include "io/file.h"

#include <csignal>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "io/expect_error.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

// Makes every write beyond `bytes` of a file fail in this process, as a full disk would.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_limit_);
    rlimit limit = old_limit_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_limit_{};
  void (*old_handler_)(int);
};

TEST(ReadFile, GivesTheBytes) {
  const TempDir dir;
  const std::string bytes("a\0b\xff", 4);
  EXPECT_EQ(read_file(dir.write("x", bytes)), bytes);
  EXPECT_EQ(read_file(dir.write("empty", "")), "");
}

TEST(ReadFile, RefusesWhatItCannotRead) {
  const TempDir dir;
  const auto missing = dir.path() / "none";
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { read_file(missing); }),
                       missing.string() + ": No such file"));
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kIo, [&] { read_file(dir.path()); }), "is a directory"));
  const auto large = dir.write("large", std::string(1001, 'x'));
  EXPECT_EQ(read_file(large, 1001).size(), 1001u);
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { read_file(large, 1000); }),
                       "larger than the limit of 1000 bytes"));
}

TEST(AtomicFile, AppearsOnlyOnCommit) {
  const TempDir dir;
  const auto path = dir.write("result", "old");
  {
    AtomicFile file(path);
    file.write("new");
    EXPECT_EQ(slurp(path), "old");
  }
  EXPECT_EQ(slurp(path), "old") << "dropped without a commit";
  EXPECT_EQ(dir.num_files(), 1u) << "the temporary is gone";
  write_file(path, "new");
  EXPECT_EQ(slurp(path), "new");
  EXPECT_EQ(dir.num_files(), 1u);
}

TEST(AtomicFile, NamesAPathThatCannotBeWritten) {
  const TempDir dir;
  const auto path = dir.path() / "none" / "result";
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { write_file(path, "x"); }),
                       "cannot write " + path.string() + ": No such file"));
  const auto file = dir.write("file", "x");
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { write_file(file / "result", "x"); }),
                       "Not a directory"));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { write_file(dir.path(), "x"); }),
                       dir.path().string()));
}

TEST(AtomicFile, WritesBehindLinksAndKeepsThem) {
  const TempDir dir;
  namespace fs = std::filesystem;
  fs::create_directory(dir.path() / "there");
  const auto file = dir.write("there/result", "old");
  fs::create_symlink("there/result", dir.path() / "link");
  fs::create_symlink(dir.path() / "link", dir.path() / "link to a link");
  fs::create_symlink("there/new", dir.path() / "to nothing");
  write_file(dir.path() / "link to a link", "new");
  EXPECT_EQ(slurp(file), "new");
  write_file(dir.path() / "to nothing", "made");
  EXPECT_EQ(slurp(dir.path() / "there/new"), "made");
  for (const char* name : {"link", "link to a link", "to nothing"}) {
    EXPECT_TRUE(fs::is_symlink(dir.path() / name)) << name;
  }
  fs::create_symlink("loop", dir.path() / "loop");
  expect_error(ErrorCode::kIo, [&] { write_file(dir.path() / "loop", "x"); });
}

// Root could replace a device.
TEST(AtomicFile, ReplacesFilesAlone) {
  const TempDir dir;
  const auto fifo = dir.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", dir.path() / "link");
  for (const std::filesystem::path& path :
       {fifo, std::filesystem::path("/dev/null"), dir.path() / "link"}) {
    EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { write_file(path, "x"); }),
                         "it is no regular file"));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(AtomicFile, KeepsTheOldFileWhenTheDiskIsFull) {
  const TempDir dir;
  const auto path = dir.write("result", "old");
  {
    const FileSizeLimit limit(4096);
    EXPECT_TRUE(
        contains(expect_error(ErrorCode::kIo, [&] { write_file(path, std::string(10000, 'x')); }),
                 "cannot write " + path.string()));
  }
  EXPECT_EQ(slurp(path), "old");
  EXPECT_EQ(dir.num_files(), 1u);
}

}  // namespace
}  // namespace sluice
