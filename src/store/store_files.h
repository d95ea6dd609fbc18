// StoreFiles: the calls of the system by which the store reads and writes blocks.
//
// Faults of files are expected outcomes here, never exceptions: each call returns 0 or an errno.
// Tests and fuzz targets put another implementation in its place, with disks that are full, slow or
// fail. Directories are listed by store_folder. No call follows a link below the store's directory,
// and none removes, replaces or moves anything but a regular file (open_folder.h).
// Thread rule: any thread; a descriptor belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "store/open_folder.h"

namespace sluice {

// The rest of a read lies behind the end of the file.
inline constexpr int kFileEnded = -1;

class StoreFiles {
 public:
  virtual ~StoreFiles() = default;

  // Opens a regular file; ELOOP for a symbolic link, EINVAL for other special files. Never blocks.
  virtual int open(const StorePath& path, int* fd, uint64_t* num_bytes);
  // The size of a regular file; otherwise as open.
  virtual int look(const StorePath& path, uint64_t* num_bytes);
  // Creates a file, which must not exist, and locks it (flock): an abandoned one has no lock.
  virtual int create(const StorePath& path, int* fd);
  // Both transfer all bytes or fail. kFileEnded if a read reaches the end first.
  virtual int read(int fd, uint64_t offset, std::span<std::byte> dst);
  virtual int write(int fd, uint64_t offset, std::span<const std::byte> src);
  // Marks an open file as used now.
  virtual int touch(int fd);
  // Network file systems report a full disk here. The descriptor is closed in any case.
  virtual int close(int fd);
  // EEXIST if anything but a file has the new name; otherwise as look.
  virtual int rename(const StorePath& from, const StorePath& to);
  // Errors as look.
  virtual int remove(const StorePath& path);
  // With its parents; 0 if it exists already, ENOTDIR if something else has its name.
  virtual int make_folder(const StorePath& path);
};

// Closes a descriptor.
class StoreFile {
 public:
  StoreFile(StoreFiles& files, int fd) : files_(files), fd_(fd) {}
  ~StoreFile() { close(); }
  StoreFile(const StoreFile&) = delete;
  StoreFile& operator=(const StoreFile&) = delete;

  int fd() const { return fd_; }
  // 0 or an errno; only the first call closes.
  int close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 ? 0 : files_.close(fd);
  }

 private:
  StoreFiles& files_;
  int fd_;
};

}  // namespace sluice
