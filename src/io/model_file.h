// The files of a model: regular files only, read by position.
//
// Used by everything that reads a model directory, so that a FIFO, a dangling link or an unreadable
// folder gives the same text and error code everywhere. Files are not mapped: if another program
// truncates a file while it is read (a restarted download, a network disk), access to a mapping
// would end the process with SIGBUS, while a short read is an ordinary error.
// Thread rule: immutable after construction; may be read from any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "io/file.h"

namespace sluice {

// One open regular file. Cost: one file descriptor.
class ModelFile {
 public:
  // Opens the file. Does not block, not even on a FIFO, which is refused.
  //
  // Errors: kModel naming the path and what to do: absent, a link to nothing or to itself,
  // unreadable, a directory, another special file, a pointer of Git LFS, which a clone without LFS
  // has in place of each large file. kDoesNotFit when memory is used up.
  explicit ModelFile(std::filesystem::path path);
  ~ModelFile();
  ModelFile(ModelFile&& other) noexcept;
  ModelFile& operator=(ModelFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  // As it was when the file was opened.
  uint64_t num_bytes() const { return num_bytes_; }

  // Reads bytes [offset, offset + dst.size()), which must lie within num_bytes().
  //
  // Errors: kModel when the file has become shorter meanwhile or the disk fails.
  void read(uint64_t offset, std::span<std::byte> dst) const;

  // Asks the kernel to read the range into its page cache; returns at once.
  void will_need(uint64_t offset, uint64_t num_bytes) const;

  // Errors: kModel if the file's size or modification time has changed since it was opened: the
  // bytes read may be of two versions.
  void require_unchanged() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t num_bytes_ = 0;  // this and the time: for require_unchanged
  int64_t modified_ns_ = 0;
};

// A whole text file of a model. Errors: those of ModelFile; kModel when it is over `max_bytes`.
std::string read_model_file(const std::filesystem::path& path,
                            uint64_t max_bytes = kMaxTextFileBytes);

// Whether an optional file of a model exists. A dangling link (an interrupted download) counts as
// existing, and reading it gives an error that says so. Errors: kModel if the folder cannot be
// searched.
bool model_file_exists(const std::filesystem::path& path);

}  // namespace sluice
