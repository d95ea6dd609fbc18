// POSIX calls; an interrupted or short transfer goes on where it stopped.
#include "store/store_files.h"

#include <cerrno>
#include <cstdio>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sluice {

int StoreFiles::open(const std::filesystem::path& path, int* fd, uint64_t* num_bytes) {
  // O_NONBLOCK: a FIFO must not hold up a request. It has no effect on regular files.
  *fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (*fd < 0) return errno;
  struct stat status {};
  int error = ::fstat(*fd, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) error = EINVAL;
  if (error != 0) ::close(std::exchange(*fd, -1));
  *num_bytes = static_cast<uint64_t>(status.st_size);
  return error;
}

// lstat: a link is no block, wherever it leads.
int StoreFiles::look(const std::filesystem::path& path, uint64_t* num_bytes) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return errno;
  if (S_ISLNK(status.st_mode)) return ELOOP;
  if (!S_ISREG(status.st_mode)) return EINVAL;
  *num_bytes = static_cast<uint64_t>(status.st_size);
  return 0;
}

int StoreFiles::create(const std::filesystem::path& path, int* fd) {
  *fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (*fd < 0) return errno;
  // A file system without locks still works: its temporary files may then be removed while they are
  // written, and the rename finds none.
  (void)::flock(*fd, LOCK_EX | LOCK_NB);
  return 0;
}

int StoreFiles::read(int fd, uint64_t offset, std::span<std::byte> dst) {
  while (!dst.empty()) {
    const ssize_t count = ::pread(fd, dst.data(), dst.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return kFileEnded;
    offset += static_cast<uint64_t>(count);
    dst = dst.subspan(static_cast<size_t>(count));
  }
  return 0;
}

int StoreFiles::write(int fd, uint64_t offset, std::span<const std::byte> src) {
  while (!src.empty()) {
    const ssize_t count = ::pwrite(fd, src.data(), src.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    offset += static_cast<uint64_t>(count);
    src = src.subspan(static_cast<size_t>(count));
  }
  return 0;
}

// Both times; the time of modification is the one that eviction reads, since many disks are mounted
// without times of access.
int StoreFiles::touch(int fd) { return ::futimens(fd, nullptr) == 0 ? 0 : errno; }

int StoreFiles::close(int fd) { return ::close(fd) == 0 ? 0 : errno; }

int StoreFiles::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int StoreFiles::remove(const std::filesystem::path& path) {
  return ::unlink(path.c_str()) == 0 ? 0 : errno;
}

int StoreFiles::make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error.value();
}

}  // namespace sluice
