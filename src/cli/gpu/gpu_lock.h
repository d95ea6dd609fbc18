// GpuLock: lets processes use a GPU one after the other.
//
// An exclusive lock on a file named after the GPU. The kernel releases it when the holder ends,
// even by a crash. It is advisory: only `--gpu-lock` of the commands and tools/with-gpu take it.
// Thread rule: main thread.
#pragma once

#include <functional>
#include <string>

namespace sluice::cli {

// Path of the lock file of a GPU ("GPU-1b3f..."), independent of user and working directory: in
// SLUICE_LOCK_DIR, or /tmp. tools/with-gpu builds the same path.
std::string gpu_lock_path(const std::string& gpu_id);

class GpuLock {
 public:
  // Takes the lock; waits while another process holds it. `on_wait` is called once, with the holder
  // ("process 1234, sluice run"); `should_stop` is called between tries. If a parent process holds
  // the lock for this one (SLUICE_GPU_LOCK_HELD has the path), nothing is taken.
  // Errors: kIo if the file cannot be created or locked; Interrupted if `should_stop` returns true.
  GpuLock(const std::string& path, const std::function<void(const std::string& holder)>& on_wait,
          const std::function<bool()>& should_stop);
  // Releases the lock; the file stays.
  ~GpuLock();
  GpuLock(const GpuLock&) = delete;
  GpuLock& operator=(const GpuLock&) = delete;

 private:
  // False while another process holds the lock. Errors: kIo.
  bool try_lock();

  std::string path_;
  int file_ = -1;  // the open file, which owns the lock; -1: a parent holds it
};

}  // namespace sluice::cli
