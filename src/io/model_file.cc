// POSIX reading by position; each error of the system gets a remedy.
#include "io/model_file.h"

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/printable.h"

namespace sluice {
namespace {

// Time of the last modification in nanoseconds since 1970.
int64_t modified_ns_of(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

// What a user can do about the errno `error` of a file.
std::string_view remedy_of(int error) {
  switch (error) {
    case ENOENT:
      return "check the path, or fetch the file";
    case ELOOP:
      return "its links lead in a circle; remove them and fetch the file again";
    case EACCES:
    case EPERM:
      return "give this user the right to read it and to enter its folders";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
    case ENOMEM:
      return "free memory, or raise its limit (ulimit -v)";
    default:
      return "check the path and the disk";
  }
}

// Throws "cannot <action> <path>". A link without a target is named as such: caches of downloads
// are links, and one that was cut off leaves a dangling one.
[[noreturn]] void fail_access(const std::filesystem::path& path, std::string_view action,
                              int error) {
  std::error_code no_link;
  const std::filesystem::path target = std::filesystem::read_symlink(path, no_link);
  if (error == ENOENT && !no_link) {
    fail(ErrorCode::kModel,
         "{} is a link to {}, which does not exist; fetch the file again, or remove the link",
         path.string(), printable(target.string(), 200));
  }
  fail(error == ENOMEM ? ErrorCode::kDoesNotFit : ErrorCode::kModel, "cannot {} {}: {}; {}", action,
       path.string(), std::strerror(error), remedy_of(error));
}

// Status of an open file. Errors: kModel if it is no regular file.
struct stat regular_status(int fd, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_access(path, "open", errno);
  if (!S_ISREG(status.st_mode)) {
    fail(ErrorCode::kModel, "{} is {}; a model's files must be regular files, fetch it again",
         path.string(), S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
  }
  return status;
}

// Errors: kModel for a pointer of Git LFS. Source: git-lfs/docs/spec.md, by which a pointer begins
// with this line and has less than 1024 bytes.
void refuse_lfs_pointer(const ModelFile& file) {
  constexpr std::string_view kFirstLine = "version https://git-lfs.github.com/spec/";
  if (file.num_bytes() < kFirstLine.size() || file.num_bytes() >= 1024) return;
  std::string begin(kFirstLine.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(begin)));
  if (begin != kFirstLine) return;
  fail(ErrorCode::kModel,
       "{} is a Git LFS pointer and not the file that it stands for; run `git lfs pull` in its "
       "folder",
       file.path().string());
}

}  // namespace

ModelFile::ModelFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO must not hang; it has no effect on regular files.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) fail_access(path_, "open", errno);
  try {
    const struct stat status = regular_status(fd_, path_);
    num_bytes_ = static_cast<uint64_t>(status.st_size);
    modified_ns_ = modified_ns_of(status);
    refuse_lfs_pointer(*this);
    // The destructor does not run if a constructor throws.
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

ModelFile::~ModelFile() {
  if (fd_ >= 0) ::close(fd_);
}

ModelFile::ModelFile(ModelFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      num_bytes_(other.num_bytes_),
      modified_ns_(other.modified_ns_) {}

ModelFile& ModelFile::operator=(ModelFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(num_bytes_, other.num_bytes_);
  std::swap(modified_ns_, other.modified_ns_);
  return *this;
}

void ModelFile::read(uint64_t offset, std::span<std::byte> dst) const {
  SLUICE_CHECK(offset <= num_bytes_ && dst.size() <= num_bytes_ - offset,
               "bytes {} to {} of {} in {}", offset, offset + dst.size(), num_bytes_,
               path_.string());
  // pread may return less than asked for; 0 means that the file has become shorter.
  while (!dst.empty()) {
    const ssize_t count = ::pread(fd_, dst.data(), dst.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_access(path_, "read", errno);
    if (count == 0) {
      fail(ErrorCode::kModel,
           "{} was cut while it was read: it had {} bytes and now ends within {}; load again when "
           "nothing writes to it",
           path_.string(), num_bytes_, offset);
    }
    offset += static_cast<uint64_t>(count);
    dst = dst.subspan(static_cast<size_t>(count));
  }
}

void ModelFile::will_need(uint64_t offset, uint64_t num_bytes) const {
  // Only a hint to the kernel, so its result is ignored.
  (void)::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(num_bytes),
                        POSIX_FADV_WILLNEED);
}

void ModelFile::require_unchanged() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail_access(path_, "read", errno);
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size == num_bytes_ && modified_ns_of(status) == modified_ns_) return;
  fail(ErrorCode::kModel,
       "{} was changed while it was read (it had {} bytes and has {}); load again when nothing "
       "writes to it",
       path_.string(), num_bytes_, size);
}

std::string read_model_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const ModelFile file(path);
  if (file.num_bytes() > max_bytes) {
    fail(ErrorCode::kModel, "{} is larger than the limit of {} bytes; is it the right file?",
         path.string(), max_bytes);
  }
  // Allocated after the check: a wrong file may be larger than the memory.
  std::string text(static_cast<size_t>(file.num_bytes()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

bool model_file_exists(const std::filesystem::path& path) {
  struct stat status {};
  // lstat does not follow links, so that a dangling one exists.
  if (::lstat(path.c_str(), &status) == 0) return true;
  if (errno != ENOENT) fail_access(path, "look at", errno);
  return false;
}

}  // namespace sluice
