// MappedFile: a file as read-only memory.
//
// Used by ModelDirectory for weights, so that loading costs one conversion and no second copy.
// Thread rule: may be read from any thread; the bytes live as long as the object. Another program
// that truncates the file meanwhile ends this process (SIGBUS), as with every mapping.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace sluice {

class MappedFile {
 public:
  // Maps the whole file.
  //
  // Errors: kIo naming the path: absent, unreadable, a directory or another special file; kModel
  // when it is empty, as an interrupted download leaves it.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Asks the kernel to read `range` (a part of bytes()) ahead; returns at once.
  void will_need(std::span<const std::byte> range) const;

  // Gives the memory of the pages that lie wholly inside `range` back. They are read from the file
  // again when touched, so this is always safe; it keeps the peak of loading near the weights.
  void drop(std::span<const std::byte> range) const;

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace sluice
