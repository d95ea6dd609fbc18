// POSIX file access with errors that name the path and say what to do.
#include "io/file.h"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace sluice {
namespace {

// Throws kIo "cannot <what> <path>: <reason>" with a remedy for the errno `error`.
[[noreturn]] void fail_write(const std::filesystem::path& path, std::string_view what, int error) {
  std::string_view remedy = "choose a path in a directory that you may write";
  if (error == ENOSPC || error == EDQUOT) remedy = "free some space or choose another place";
  if (error == EFBIG) remedy = "raise the limit of a file's size (ulimit -f) or write less";
  fail(ErrorCode::kIo, "cannot {} {}: {}; {}", what, path.string(), std::strerror(error), remedy);
}

// Where a chain of links leads, whether something is there or not. A loop of links is an
// error.
std::filesystem::path behind_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as the kernel's limit
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) return path;
    path = path.parent_path() / target;
  }
  fail_write(path, "write", ELOOP);
}

// Closes a descriptor on every exit of a function, exceptions included.
struct FdCloser {
  int fd;
  ~FdCloser() { ::close(fd); }
};

}  // namespace

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    fail(ErrorCode::kIo, "cannot open {}: {}; check the path and its permissions", path.string(),
         std::strerror(errno));
  }
  const FdCloser closer{fd};
  struct stat status {};
  if (::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
    fail(ErrorCode::kIo, "{} is a directory; name a file", path.string());
  }
  std::string text;
  // Only a hint: a FIFO has no size, and a file may grow while it is read.
  if (S_ISREG(status.st_mode) && static_cast<uint64_t>(status.st_size) <= max_bytes) {
    text.reserve(static_cast<size_t>(status.st_size));
  }
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail(ErrorCode::kIo, "cannot read {}: {}; check the disk", path.string(),
           std::strerror(errno));
    }
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > max_bytes) {
      fail(ErrorCode::kIo, "{} is larger than the limit of {} bytes; is it the right file?",
           path.string(), max_bytes);
    }
  }
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(behind_links(std::move(path))) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path_, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_directory(status)) {
    fail(ErrorCode::kIo, "cannot write {}: it is no regular file; name another one",
         path_.string());
  }
  // In the same directory, since rename works within one file system only.
  std::string pattern = path_.string() + ".XXXXXX";
  fd_ = ::mkstemp(pattern.data());
  if (fd_ < 0) fail_write(path_, "write", errno);
  temporary_ = pattern;
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  SLUICE_CHECK(fd_ >= 0, "write to {} after its commit", path_.string());
  // A write may be short (a signal, a nearly full disk): the rest is written by the next one.
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_write(path_, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  SLUICE_CHECK(fd_ >= 0, "second commit of {}", path_.string());
  // mkstemp gives mode 0600; the result gets the ordinary mode under the umask. umask can only be
  // read by setting it, so it is set and restored.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(fd_, 0666 & ~mask) != 0) fail_write(path_, "set the permissions of", errno);
  // Some file systems report a full disk only when data is flushed.
  if (::fsync(fd_) != 0) fail_write(path_, "write", errno);
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed != 0) fail_write(path_, "write", errno);
  // Atomic: other programs see the old file or the new one.
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_write(path_, "write", errno);
  temporary_.clear();
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace sluice
