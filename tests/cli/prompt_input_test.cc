// Reading streams: blocks, limits, errors, lines.
#include "cli/prompt_input.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "io/temp_dir.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

// A descriptor from which `text` can be read.
class Stream {
 public:
  explicit Stream(const std::string& text) {
    file_ = directory_.write("text", text);
    fd_ = open(file_.c_str(), O_RDONLY);
  }
  ~Stream() { close(fd_); }
  int fd() const { return fd_; }

 private:
  TempDir directory_;
  std::filesystem::path file_;
  int fd_;
};

std::string refusal(int fd, uint64_t max_bytes) {
  try {
    read_stream(fd, max_bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(ReadStream, TakesAllOfIt) {
  for (const size_t size : {0u, 1u, 65535u, 65536u, 65537u, 200000u}) {
    const std::string text(size, 'x');
    EXPECT_EQ(read_stream(Stream(text).fd()), text);
  }
}

TEST(ReadStream, EndsAtTheLimit) {
  EXPECT_EQ(read_stream(Stream(std::string(1000, 'x')).fd(), 1000).size(), 1000u);
  EXPECT_NE(refusal(Stream(std::string(1001, 'x')).fd(), 1000).find("limit of 1000 bytes"),
            std::string::npos);
  const int zero = open("/dev/zero", O_RDONLY);
  EXPECT_NE(refusal(zero, 1 << 20), "") << "which has no end";
  close(zero);
}

TEST(ReadStream, ErrorsAreErrors) {
  const int directory = open("/", O_RDONLY);
  EXPECT_NE(refusal(directory, 1000).find("directory"), std::string::npos);
  close(directory);
  EXPECT_NE(refusal(directory, 1000).find("standard input cannot be read"), std::string::npos)
      << "closed";
}

TEST(ReadUserFile, NamesOptionAndFile) {
  try {
    read_user_file("--file", "/no/such/file");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("--file: cannot open /no/such/file"),
              std::string::npos)
        << error.what();
  }
}

TEST(LineReader, CutsAtNewlines) {
  const std::string longer(10000, 'y');
  const Stream stream("one\n\n" + longer + "\nlast");
  LineReader lines(stream.fd());
  std::string line;
  for (const std::string& expected :
       {std::string("one"), std::string(), longer, std::string("last")}) {
    ASSERT_EQ(lines.next(&line), LineReader::Result::kLine);
    EXPECT_EQ(line, expected);
  }
  EXPECT_EQ(lines.next(&line), LineReader::Result::kEnd);
  EXPECT_EQ(lines.next(&line), LineReader::Result::kEnd);
}

}  // namespace
}  // namespace sluice::cli
