// mmap and madvise behind an owner type.
#include "io/mapped_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace sluice {
namespace {

[[noreturn]] void fail_open(const std::filesystem::path& path, int error) {
  fail(ErrorCode::kIo, "cannot open {}: {}; check the path and its permissions", path.string(),
       std::strerror(error));
}

std::span<const std::byte> map_fd(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_open(path, errno);
  if (!S_ISREG(status.st_mode)) {
    fail(ErrorCode::kIo, "{} is {}; name a file", path.string(),
         S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
  }
  if (status.st_size == 0) {
    fail(ErrorCode::kModel, "{} is empty; fetch it again", path.string());
  }
  const size_t size = static_cast<size_t>(status.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) fail_open(path, errno);
  return {static_cast<const std::byte*>(address), size};
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO must not hang; it has no effect on regular files.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_open(path_, errno);
  try {
    bytes_ = map_fd(fd, path_);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);  // the mapping keeps the file
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::will_need(std::span<const std::byte> range) const {
  if (range.empty()) return;
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(range.data()) & ~(page - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data()) + range.size();
  // Only advice: a refusal costs speed and nothing else.
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

void MappedFile::drop(std::span<const std::byte> range) const {
  if (range.empty()) return;
  SLUICE_CHECK(
      range.data() >= bytes_.data() && range.data() + range.size() <= bytes_.data() + bytes_.size(),
      "range outside of {}", path_.string());
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t start = reinterpret_cast<uintptr_t>(range.data());
  const uintptr_t begin = (start + page - 1) & ~(page - 1);
  const uintptr_t end = (start + range.size()) & ~(page - 1);
  if (begin < end) {
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace sluice
