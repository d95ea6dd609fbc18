// Implemented with flock(2): the lock belongs to the open file, so it ends with the process.
#include "cli/gpu/gpu_lock.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// flock cannot wait with a timeout, and a blocking wait would ignore should_stop.
constexpr std::chrono::milliseconds kTimeBetweenTries(200);

// An unset variable counts as empty.
std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Opens the lock file, or creates it for all users. An existing file is opened without O_CREAT: a
// kernel with fs.protected_regular refuses O_CREAT on another user's file in /tmp. Read access is
// enough to lock; writing is needed only for the note about the holder.
int open_lock_file(const std::string& path) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW;
  int file = open(path.c_str(), O_RDWR | kFlags);
  if (file < 0 && errno == EACCES) file = open(path.c_str(), O_RDONLY | kFlags);
  if (file < 0 && errno == ENOENT) {
    file = open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0666);
    if (file >= 0 && fchmod(file, 0666) != 0)
      errno = 0;  // not fatal: other users can lock, but not write their note
  }
  if (file < 0) {
    fail(ErrorCode::kIo,
         "the GPU's lock {} cannot be opened: {}; set SLUICE_LOCK_DIR to another "
         "directory for all who share the GPU",
         path, std::strerror(errno));
  }
  return file;
}

// "process 1234, sluice", as the holder wrote it; for the message to those who wait.
std::string read_holder(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) && !line.empty() ? line : "another process";
}

// Writes this process's id and name into the file. A failure is ignored: the lock works without it.
void write_holder(int file) {
  std::ifstream own("/proc/self/comm");
  std::string name;
  std::getline(own, name);
  const std::string note = fmt::format("process {}, {}\n", getpid(), name);
  if (ftruncate(file, 0) != 0) return;
  if (pwrite(file, note.data(), note.size(), 0) < 0) return;
}

}  // namespace

std::string gpu_lock_path(const std::string& gpu_id) {
  const std::string directory = environment("SLUICE_LOCK_DIR");
  return fmt::format("{}/sluice-{}.lock", directory.empty() ? "/tmp" : directory, gpu_id);
}

GpuLock::GpuLock(const std::string& path,
                 const std::function<void(const std::string& holder)>& on_wait,
                 const std::function<bool()>& should_stop)
    : path_(path) {
  if (environment("SLUICE_GPU_LOCK_HELD") == path) return;
  file_ = open_lock_file(path);
  // Polls; on_wait runs once, before the first sleep.
  for (bool waited = false; !try_lock(); waited = true) {
    if (!waited) on_wait(read_holder(path));
    if (should_stop()) {
      close(file_);
      throw Interrupted();
    }
    std::this_thread::sleep_for(kTimeBetweenTries);
  }
  write_holder(file_);
}

GpuLock::~GpuLock() {
  // The file is not removed: a process that waits has it open and would lock a deleted file, while
  // the next one creates and locks a new file.
  if (file_ >= 0) close(file_);
}

bool GpuLock::try_lock() {
  if (flock(file_, LOCK_EX | LOCK_NB) == 0) return true;
  // EINTR counts as "held": the loop tries again.
  if (errno == EWOULDBLOCK || errno == EINTR) return false;
  const std::string why = std::strerror(errno);
  close(file_);
  fail(ErrorCode::kIo, "the GPU's lock {} cannot be taken: {}", path_, why);
}

}  // namespace sluice::cli
