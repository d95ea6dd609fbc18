// The files of a model: regular files only, read by position.
//
// Used by everything that reads a model directory, so that a FIFO, a link to nothing or a closed
// folder gets one text and one error code everywhere. Nothing is mapped: a file that another
// program cuts while it is read (a download that starts again, a network disk) would end the
// process with SIGBUS, while a read that comes up short is an error like any other.
// Thread rule: immutable after construction; may be read from any thread at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "io/file.h"

namespace sluice {

class ModelFile {
 public:
  // Opens the file without waiting for anybody, as opening a FIFO would.
  //
  // Errors: kModel naming the path and what to do: absent, a link to nothing or to itself,
  // unreadable, a directory, another special file. kDoesNotFit when memory is used up.
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

  // Asks the kernel to read a range ahead; returns at once.
  void will_need(uint64_t offset, uint64_t num_bytes) const;

  // Errors: kModel when size or time of the file are not what they were when it was opened: what
  // was read may be of two versions.
  void require_unchanged() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t num_bytes_ = 0;
  int64_t modified_ns_ = 0;
};

// A whole text file of a model. Errors: those of ModelFile; kModel when it is over `max_bytes`.
std::string read_model_file(const std::filesystem::path& path,
                            uint64_t max_bytes = kMaxTextFileBytes);

// Whether a file that a model may have or not is there. Only a name that does not exist is absent:
// a link to nothing (a download that was cut off) counts as there, and reading it says what is
// wrong. Errors: kModel when the folder does not let one look.
bool model_file_exists(const std::filesystem::path& path);

}  // namespace sluice
