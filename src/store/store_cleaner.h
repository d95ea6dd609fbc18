// clean_store removes files of a store's directory until a limit holds; StoreLock makes sure that
// one process at a time does.
//
// Used by block_store and `sluice store prune`.
// Thread rule: a StoreLock is used under a mutex of its owner; clean_store by who holds the lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "store/eviction.h"
#include "store/store_files.h"
#include "store/store_folder.h"

namespace sluice {

// The lock of DIR/lock (flock), which the system gives back when a process dies.
class StoreLock {
 public:
  // Makes the file. Errors: kIo naming `dir`, which is absent or not writable, or whose `lock` is a
  // link or no file.
  explicit StoreLock(const std::filesystem::path& dir);
  ~StoreLock();
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

  // False if another process keeps it for longer than half a second: a stopped process must not
  // hold up this one.
  bool try_lock();
  void unlock();

 private:
  int fd_ = -1;
};

struct CleanRequest {
  std::filesystem::path dir;
  uint64_t max_bytes = 0;    // nothing is removed for space while there is no more than this
  uint64_t extra_bytes = 0;  // removed beyond that, so that the next request comes later
  std::optional<KeptChain> kept = {};
  const PinnedBlocks* pinned = nullptr;  // null: none
  bool removes_all_bad = false;          // also while there is room
};

struct CleanResult {
  int64_t num_removed_blocks = 0;
  int64_t num_removed_states = 0;
  int64_t num_removed_others = 0;  // bad files, and those of writers that died
  uint64_t removed_bytes = 0;
  uint64_t left_bytes = 0;
  bool is_allowed = true;  // false: may_remove_from(dir) is false, so nothing was removed
};

// Does nothing but count unless may_remove_from the directory. Removes the files of dead writers;
// then, while there are too many bytes, bad files, oldest first, and blocks by choose_evictions. A
// file that cannot be removed is left. REQUIRES: the directory's lock is held. Errors: kIo if the
// directory cannot be read.
CleanResult clean_store(StoreFiles& files, LinkCache& links, const CleanRequest& request);

}  // namespace sluice
