// POSIX calls; an interrupted or short transfer goes on where it stopped.
#include "store/store_files.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sluice {

int StoreFiles::open(const StorePath& path, int* fd, uint64_t* num_bytes) {
  const OpenFolder folder = OpenFolder::holding(path);
  if (folder.error() != 0) return folder.error();
  // O_NONBLOCK: a FIFO must not hold up a request. It has no effect on regular files.
  *fd = ::openat(folder.fd(), path.inside.filename().c_str(),
                 O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (*fd < 0) return errno;
  struct stat status {};
  int error = ::fstat(*fd, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) error = EINVAL;
  if (error != 0) ::close(std::exchange(*fd, -1));
  *num_bytes = static_cast<uint64_t>(status.st_size);
  return error;
}

int StoreFiles::look(const StorePath& path, uint64_t* num_bytes) {
  const OpenFolder folder = OpenFolder::holding(path);
  if (folder.error() != 0) return folder.error();
  struct stat status {};
  const int error = folder.look(path.inside.filename(), &status);
  if (error == 0) *num_bytes = static_cast<uint64_t>(status.st_size);
  return error;
}

int StoreFiles::create(const StorePath& path, int* fd) {
  const OpenFolder folder = OpenFolder::holding(path);
  if (folder.error() != 0) return folder.error();
  *fd = ::openat(folder.fd(), path.inside.filename().c_str(),
                 O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
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

int StoreFiles::rename(const StorePath& from, const StorePath& to) {
  const OpenFolder source = OpenFolder::holding(from), target = OpenFolder::holding(to);
  if (source.error() != 0) return source.error();
  if (target.error() != 0) return target.error();
  const auto old_name = from.inside.filename(), new_name = to.inside.filename();
  struct stat status {};
  if (const int error = source.look(old_name, &status)) return error;
  const int replaced = target.look(new_name, &status);
  if (replaced != 0 && replaced != ENOENT) return EEXIST;
  const int failed = ::renameat(source.fd(), old_name.c_str(), target.fd(), new_name.c_str());
  return failed == 0 ? 0 : errno;
}

int StoreFiles::remove(const StorePath& path) {
  const OpenFolder folder = OpenFolder::holding(path);
  if (folder.error() != 0) return folder.error();
  const auto name = path.inside.filename();
  struct stat status {};
  if (const int error = folder.look(name, &status)) return error;
  return ::unlinkat(folder.fd(), name.c_str(), 0) == 0 ? 0 : errno;
}

int StoreFiles::make_folder(const StorePath& path) {
  std::error_code error;
  std::filesystem::create_directories(path.dir, error);
  if (error) return error.value();
  OpenFolder folder(path.dir);
  for (const auto& name : path.inside) {
    if (folder.error() != 0) break;
    if (::mkdirat(folder.fd(), name.c_str(), 0777) != 0 && errno != EEXIST) return errno;
    folder = folder.open(name);
  }
  return folder.error();
}

}  // namespace sluice
