// Descriptors for looking names up (O_PATH): no permission to read is needed for that.
#include "store/open_folder.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace sluice {
namespace {

constexpr int kFolderFlags = O_DIRECTORY | O_CLOEXEC;

// Kernels differ in what they say of a link where a folder should be.
int folder_error() { return errno == ELOOP ? ENOTDIR : errno; }

struct FolderCloser {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

}  // namespace

OpenFolder::OpenFolder(const std::filesystem::path& dir)
    : fd_(::open(dir.c_str(), O_PATH | kFolderFlags)), error_(fd_ < 0 ? errno : 0) {}

OpenFolder OpenFolder::holding(const StorePath& path) {
  OpenFolder folder(path.dir);
  for (const auto& name : path.inside.parent_path()) {
    if (folder.error() != 0) break;
    folder = folder.open(name);
  }
  return folder;
}

OpenFolder::~OpenFolder() {
  if (fd_ >= 0) ::close(fd_);
}

OpenFolder& OpenFolder::operator=(OpenFolder&& from) noexcept {
  std::swap(fd_, from.fd_);
  std::swap(error_, from.error_);
  return *this;
}

OpenFolder OpenFolder::open(const std::filesystem::path& name) const {
  const int fd = ::openat(fd_, name.c_str(), O_PATH | O_NOFOLLOW | kFolderFlags);
  return {fd, fd < 0 ? folder_error() : 0};
}

int OpenFolder::look(const std::filesystem::path& name, struct stat* status) const {
  if (::fstatat(fd_, name.c_str(), status, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  if (S_ISLNK(status->st_mode)) return ELOOP;
  return S_ISREG(status->st_mode) ? 0 : EINVAL;
}

// Opened once more, since the descriptor at hand cannot be read.
int OpenFolder::for_each(const std::function<void(const std::string&)>& visit) const {
  const int fd = ::openat(fd_, ".", O_RDONLY | kFolderFlags);
  if (fd < 0) return errno;
  const std::unique_ptr<DIR, FolderCloser> entries(::fdopendir(fd));
  if (!entries) {
    const int error = errno;
    ::close(fd);
    return error;
  }
  while (const dirent* entry = ::readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") visit(name);
  }
  return 0;
}

}  // namespace sluice
