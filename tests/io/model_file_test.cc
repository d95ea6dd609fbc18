// ModelFile: what is refused with which text, and files that change while they are read.
#include "io/model_file.h"

#include <chrono>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/expect_error.h"
#include "io/ordinary_user.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const ModelFile& file, uint64_t offset, size_t num_bytes) {
  std::string bytes(num_bytes, '?');
  file.read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::string file_error(const fs::path& path) {
  const std::string text = expect_error(ErrorCode::kModel, [&] { ModelFile{path}; });
  EXPECT_EQ(expect_error(ErrorCode::kModel, [&] { read_model_file(path); }), text);
  return text;
}

TEST(ModelFile, ReadsByPositionAndMoves) {
  const TempDir dir;
  ModelFile first(dir.write("a", "hello"));
  EXPECT_EQ(first.num_bytes(), 5u);
  ModelFile second(std::move(first));
  second.will_need(0, 5);
  EXPECT_EQ(bytes_of(second, 1, 3), "ell");
  EXPECT_EQ(bytes_of(second, 5, 0), "");
  ModelFile third(dir.write("b", "world"));
  third = std::move(second);
  EXPECT_EQ(bytes_of(third, 0, 5), "hello");
  EXPECT_EQ(third.path().filename(), "a");
  EXPECT_EQ(read_model_file(dir.path() / "b"), "world");
  EXPECT_EQ(read_model_file(dir.write("empty", "")), "");
}

TEST(ModelFile, OutlivesTheName) {
  const TempDir dir;
  const auto path = dir.write("a", "hello");
  const ModelFile file(path);
  fs::remove(path);
  EXPECT_EQ(bytes_of(file, 0, 5), "hello");
  file.require_unchanged();
}

TEST(ModelFile, RefusesWhatIsNoRegularFile) {
  const TempDir dir;
  const auto missing = dir.path() / "none";
  EXPECT_TRUE(contains(file_error(missing), "cannot open " + missing.string() + ": No such file"));
  EXPECT_TRUE(contains(file_error(dir.path()), "is a directory; a model's files must be regular"));
  EXPECT_TRUE(contains(file_error("/dev/zero"), "is not a regular file"));
  const auto fifo = dir.path() / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(contains(file_error(fifo), "is not a regular file"))
      << "and did not wait for a writer";
  EXPECT_TRUE(contains(file_error(dir.write("file", "x") / "y"), "Not a directory"));
  EXPECT_TRUE(contains(file_error(dir.path() / std::string(5000, 'x')), "too long"));
}

TEST(ModelFile, SaysWhatIsWrongWithALink) {
  const TempDir dir;
  const auto dangling = dir.path() / "dangling", loop = dir.path() / "loop";
  fs::create_symlink("../../blobs/0123", dangling);
  fs::create_symlink("loop", loop);
  EXPECT_TRUE(contains(file_error(dangling),
                       "dangling is a link to ../../blobs/0123, which does not exist; fetch"));
  EXPECT_TRUE(contains(file_error(loop), "its links lead in a circle"));
}

TEST(ModelFile, OnlyANameThatDoesNotExistIsAbsent) {
  const TempDir dir;
  EXPECT_FALSE(model_file_exists(dir.path() / "none"));
  EXPECT_TRUE(model_file_exists(dir.write("file", "")));
  fs::create_symlink("nothing", dir.path() / "dangling");
  fs::create_symlink("loop", dir.path() / "loop");
  EXPECT_TRUE(model_file_exists(dir.path() / "dangling"));
  EXPECT_TRUE(model_file_exists(dir.path() / "loop"));
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kModel,
                            [&] { model_file_exists(dir.path() / std::string(5000, 'x')); }),
               "cannot look at"));
}

TEST(ModelFile, NamesAFileThatThisUserMayNotRead) {
  const TempDir dir;
  dir.write("file", "x");
  chmod((dir.path() / "file").c_str(), 0);
  chmod(dir.path().c_str(), 0755);
  const AsOrdinaryUser user;
  if (!user.is_one()) GTEST_SKIP() << "this user is root and may not become another one";
  EXPECT_TRUE(contains(file_error(dir.path() / "file"),
                       "Permission denied; give this user the right to read it"));
}

TEST(ModelFile, DoesNotTakeAClosedFolderForAnEmptyOne) {
  const TempDir dir;
  chmod(dir.path().c_str(), 0755);
  const fs::path closed = dir.path() / "closed";
  fs::create_directory(closed);
  chmod(closed.c_str(), 0);
  {
    const AsOrdinaryUser user;
    if (!user.is_one()) GTEST_SKIP() << "this user is root and may not become another one";
    EXPECT_TRUE(
        contains(expect_error(ErrorCode::kModel, [&] { model_file_exists(closed / "none"); }),
                 "cannot look at " + (closed / "none").string() + ": Permission denied; give"));
  }
  chmod(closed.c_str(), 0700);
}

TEST(ModelFile, AFileThatIsCutIsAnError) {
  constexpr size_t kBytes = 1 << 20;
  const TempDir dir;
  for (const size_t left : {size_t{0}, size_t{1}, size_t{4096}, kBytes / 2, kBytes - 1}) {
    const auto path = dir.write("big", std::string(kBytes, 'x'));
    const ModelFile file(path);
    EXPECT_EQ(bytes_of(file, 0, kBytes), std::string(kBytes, 'x'));
    fs::resize_file(path, left);
    EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { bytes_of(file, 0, kBytes); }),
                         path.string() + " was cut while it was read: it had 1048576 bytes"));
    EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { file.require_unchanged(); }),
                         "has " + std::to_string(left)));
  }
}

TEST(ModelFile, AFileThatIsWrittenMeanwhileIsNoticed) {
  const TempDir dir;
  const auto path = dir.write("a", "hello");
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  const ModelFile file(path);
  file.require_unchanged();
  dir.write("a", "world");
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { file.require_unchanged(); }),
                       path.string() + " was changed while it was read"));
}

TEST(ReadModelFile, HasALimit) {
  const TempDir dir;
  const auto path = dir.write("large", std::string(1001, 'x'));
  EXPECT_EQ(read_model_file(path, 1001).size(), 1001u);
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { read_model_file(path, 1000); }),
                       "larger than the limit of 1000 bytes"));
}

}  // namespace
}  // namespace sluice
