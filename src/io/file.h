// Reads whole files into strings, and writes files that appear only when complete.
//
// Used by the JSON reader, the safetensors writer and everything that writes results.
// Thread rule: free functions keep no state; an AtomicFile belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

// Default limit of a file read into a string: a wrong file name should not fill the memory.
inline constexpr uint64_t kMaxTextFileBytes = uint64_t{256} << 20;

// Reads a file that fits a string.
//
// For files that a user names, FIFOs included (`-f <(command)`). Files of a model directory are
// read with read_model_file.
// Errors: kIo naming the path: absent, a directory, unreadable, or larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes = kMaxTextFileBytes);

// A file that appears under its name only when it is complete.
//
// Bytes go to a temporary name in the same directory; commit() flushes and renames. Without a
// commit the destructor removes the temporary, so a full disk leaves what was there before. A link
// stays: the file that it leads to is replaced. What is no regular file is not replaced, such as
// /dev/null, which root could.
// Errors: kIo naming the path and the system's reason, from any call.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends to the temporary file. REQUIRES for all three: not committed (checked).
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // For a program that writes the file in this one's place. REQUIRES: as write.
  const std::filesystem::path& temporary() const { return temporary_; }
  // Flushes the data to disk and gives the file its name, replacing a file of that name.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty after commit()
  int fd_ = -1;
};

// Writes a whole file through an AtomicFile.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace sluice
