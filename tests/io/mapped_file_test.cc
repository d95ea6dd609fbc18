// Mapping files: contents, what is refused, and memory that is really given back.
#include "io/mapped_file.h"

#include <fstream>
#include <numeric>
#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/expect_error.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// KiB of file pages that this process holds now.
long resident_file_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stol(line.substr(8));
  }
  return -1;
}

unsigned sum_of(std::span<const std::byte> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), 0u,
                         [](unsigned sum, std::byte b) { return sum + unsigned(b); });
}

TEST(MappedFile, ShowsTheBytesAndMoves) {
  const TempDir dir;
  MappedFile first(dir.write("a", "hello"));
  MappedFile second(std::move(first));
  EXPECT_EQ(text_of(second), "hello");
  MappedFile third(dir.write("b", "world"));
  third = std::move(second);
  EXPECT_EQ(text_of(third), "hello");
  EXPECT_EQ(third.path().filename(), "a");
}

TEST(MappedFile, OutlivesTheName) {
  const TempDir dir;
  const auto path = dir.write("a", "hello");
  const MappedFile file(path);
  std::filesystem::remove(path);
  EXPECT_EQ(text_of(file), "hello");
}

TEST(MappedFile, RefusesWhatIsNoFullFile) {
  const TempDir dir;
  const auto missing = dir.path() / "none";
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { MappedFile{missing}; }),
                       "cannot open " + missing.string() + ": No such file"));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { MappedFile{dir.path()}; }),
                       "is a directory; name a file"));
  const auto fifo = dir.path() / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kIo, [&] { MappedFile{fifo}; }), "is not a regular file"));
  const auto empty = dir.write("empty", "");
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { MappedFile{empty}; }),
                       empty.string() + " is empty"));
}

TEST(MappedFile, DropGivesMemoryBackAndKeepsTheBytes) {
  constexpr size_t kBytes = 32 << 20;
  const TempDir dir;
  const MappedFile file(dir.write("big", std::string(kBytes, '\1')));
  file.will_need(file.bytes());
  EXPECT_EQ(sum_of(file.bytes()), kBytes);
  const long before = resident_file_kib();
  const auto inner = file.bytes().subspan(1000, kBytes - 2000);
  file.drop(inner);
  EXPECT_LT(resident_file_kib(), before - 31 * 1024);
  EXPECT_EQ(sum_of(file.bytes()), kBytes);
  file.drop(file.bytes().subspan(10, 20));  // less than a page: nothing to give back
  file.drop({});
}

}  // namespace
}  // namespace sluice
