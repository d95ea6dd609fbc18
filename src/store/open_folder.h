// StorePath names what is in a store's directory; OpenFolder opens folders of it without following
// links. A user may have named a directory with files of other programs: a link there leads to
// files that are not the store's, and what is checked and then removed by a path may be two files.
//
// Used by store_files and store_folder, for every file of the store. Thread rule: values.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include <sys/stat.h>

namespace sluice {

// A file or folder of a store.
struct StorePath {
  std::filesystem::path dir;     // the store's directory, as its user names it: links are followed
  std::filesystem::path inside;  // names below it, of which none is a link; empty: `dir` itself

  // For messages and tests.
  std::filesystem::path whole() const { return inside.empty() ? dir : dir / inside; }
};

// A folder to look names up in; or the errno with which it could not be opened, ENOTDIR if it is a
// link or no folder. Cost: a call of the system for each folder on the way.
class OpenFolder {
 public:
  explicit OpenFolder(const std::filesystem::path& dir);
  // The folder that has this file.
  static OpenFolder holding(const StorePath& path);
  ~OpenFolder();
  OpenFolder(OpenFolder&& from) noexcept
      : fd_(std::exchange(from.fd_, -1)), error_(std::exchange(from.error_, 0)) {}
  OpenFolder& operator=(OpenFolder&& from) noexcept;

  // A folder in this one. REQUIRES: this one is open.
  OpenFolder open(const std::filesystem::path& name) const;
  int fd() const { return fd_; }
  int error() const { return error_; }  // 0: it is open

  // 0 for a regular file, whose status is filled in; ELOOP for a link, EINVAL for everything else.
  int look(const std::filesystem::path& name, struct stat* status) const;
  // Calls visit(name) for all entries but "." and "..". Those that come or go meanwhile may be left
  // out. Returns 0 or the errno with which the list cannot be read.
  int for_each(const std::function<void(const std::string&)>& visit) const;

 private:
  OpenFolder(int fd, int error) : fd_(fd), error_(error) {}

  int fd_;
  int error_;
};

}  // namespace sluice
