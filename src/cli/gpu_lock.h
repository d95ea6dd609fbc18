// GpuLock: processes that want a GPU for themselves take turns.
//
// A lock on a file that is named after the GPU. Whoever asks for it waits until its holder is done;
// the kernel takes it back when a holder ends, however that happens. It keeps apart only those who
// ask: `--gpu-lock` of the commands and tools/with-gpu. Thread rule: main thread.
#pragma once

#include <functional>
#include <string>

namespace sluice::cli {

// The file for a GPU's identity ("GPU-1b3f..."), the same for every user and working directory:
// in SLUICE_LOCK_DIR, or /tmp. tools/with-gpu builds the same name.
std::string gpu_lock_path(const std::string& gpu_id);

class GpuLock {
 public:
  // Takes the lock, waiting as long as another process has it. `on_wait` hears once who that is
  // ("process 1234, sluice needle"); `should_stop` is asked between tries. Nothing is taken when a
  // parent process holds it for this one (SLUICE_GPU_LOCK_HELD names the file).
  // Errors: kIo when the file cannot be made or locked; Interrupted when `should_stop` says so.
  GpuLock(const std::string& path, const std::function<void(const std::string& holder)>& on_wait,
          const std::function<bool()>& should_stop);
  ~GpuLock();
  GpuLock(const GpuLock&) = delete;
  GpuLock& operator=(const GpuLock&) = delete;

 private:
  bool try_lock();

  std::string path_;
  int file_ = -1;  // -1: a parent holds it
};

}  // namespace sluice::cli
