// BlockStore: blocks of KV on disk, found by what they hold, shared by processes and machines.
//
// Used by StoreWriter and StoreReader, which give it threads. Each block is a file that appears
// whole and never changes (block_file.h). Everything that is read is checked: a file that is
// damaged, cut short, of another model or of other tokens is a miss, and is moved to DIR/bad, so
// that it is computed and written again. Faults of the disk never become exceptions: a failed write
// is skipped, and a disk that is full or fails turns writing off.
//
// Any number of processes may use one directory. Readers need no lock: a file that is evicted while
// it is read stays readable. Nothing is removed from a directory with files of other programs
// unless it has the store's marker. Only eviction takes a lock, on DIR/lock. The limit of bytes may
// be exceeded by a sixteenth for each process that writes, because a process lists the directory
// only after it has written that much.
//
// Thread rule: all methods from any thread at once. `on_warning` is called on the caller's thread,
// without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "store/block_file.h"
#include "store/block_reader.h"
#include "store/block_writer.h"
#include "store/rate_meter.h"
#include "store/store_cleaner.h"
#include "store/store_files.h"
#include "store/store_folder.h"

namespace sluice {

enum class StoreMode {
  kReadWrite,
  kReadOnly,  // writes nothing: no block, no time of use, and bad files stay where they are
};

struct BlockStoreOptions {
  std::filesystem::path dir;
  uint64_t max_bytes = 0;  // of all files of DIR, whoever wrote them
  StoreMode mode = StoreMode::kReadWrite;
  StoreFormat format;
  // One line each: writing was turned off; the first block that was skipped for a passing fault;
  // the first bad file; a full directory from which nothing may be removed. May be empty.
  std::function<void(const std::string&)> on_warning = {};
};

// Memory that a stored block is read into.
struct BlockTarget {
  BlockPlace place;
  std::span<const int32_t> tokens;  // the ids that the block must have: block_tokens of them
  LayerTargets layers;
  std::span<SummaryTarget> summaries = {};
};

enum class WriteResult {
  kWritten,
  kPresent,  // stored already
  // All else that is stored leads to this block, or its parent is not stored, or another process
  // evicts, or nothing may be removed.
  kNoRoom,
  kFailed,   // a fault of the disk or its directory; a lasting one turns writing off
  kOff,      // read-only, or turned off
  kDropped,  // by StoreWriter alone: it ended before the block's turn
};

struct StoreStats {
  int64_t num_hits = 0;    // of blocks, as all that is not of states
  int64_t num_misses = 0;  // reads, bad files included
  int64_t num_bad = 0;
  int64_t num_written = 0;
  int64_t num_present = 0;
  int64_t num_no_room = 0;
  int64_t num_failed = 0;
  int64_t num_evicted = 0;  // blocks, by this process
  int64_t num_states_read = 0;
  int64_t num_states_written = 0;
  uint64_t read_bytes = 0;  // of files, for hits
  uint64_t written_bytes = 0;
  bool is_writing = false;
  double read_bytes_per_second = 0;  // RateMeter's; 0: unknown
  double write_bytes_per_second = 0;
};

class BlockStore {
 public:
  // Makes the directory unless read-only, and its marker if nothing foreign is in it
  // (may_remove_from). `files` outlives the store.
  // Errors: kIo naming the directory: absent (read-only), or not writable (read-write).
  // kInvalidArgument: max_bytes holds no block, or an impossible layout.
  explicit BlockStore(BlockStoreOptions options);
  BlockStore(BlockStoreOptions options, StoreFiles& files);  // for tests

  // Whether there is a file for this key. A later read may still miss: files are evicted, and only
  // a read checks what is in one. Cost: one call of the system.
  bool contains(const StoreKey& key, StoredKind kind = StoredKind::kKv);

  // Reads a block, or the states after it, and marks the file as used. After a miss (false) the
  // targets' bytes are undefined. REQUIRES (checked): targets and tokens have the sizes of the
  // layout.
  bool read(const BlockTarget& target);

  // Writes a block, or the states after it, unless they are stored. Evicts others if there is no
  // room, but none of the blocks before this one; and none at all for a block whose parent is not
  // stored, or states whose block is not.
  // REQUIRES (checked): sources and tokens have the sizes of the layout.
  WriteResult write(const BlockSource& source);

  // Blocks that this process evicts after all others, in place of those named before. They need not
  // be stored yet. Other processes do not get to know them.
  void set_pinned(std::set<StoreKey> keys);

  const StoreFormat& format() const { return options_.format; }
  StoreStats stats() const;

 private:
  StorePath path_of(const BlockPlace& place) const;
  void open_for_writing();
  void make_root();
  void check_sizes(StoredKind kind, size_t num_tokens, size_t num_bytes) const;
  bool read_checked(StoreFile& file, uint64_t num_bytes, const BlockTarget& target,
                    std::string* fault);
  void set_aside(const BlockPlace& place, const std::string& fault);
  bool is_known_bad(const StoreKey& key, StoredKind kind);
  bool make_room(uint64_t num_bytes, const BlockPlace& place);
  bool clean(uint64_t num_bytes, const StoreKey& last_kept);
  std::shared_ptr<const PinnedBlocks> pinned() const;
  int write_file(const BlockSource& source);
  WriteResult finish_write(int error, const BlockSource& source, uint64_t num_bytes);
  WriteResult fail_write(const BlockPlace& place, int error);
  WriteResult count(WriteResult result);
  void warn_of_missing_marker();
  void warn(const std::string& text) const;

  BlockStoreOptions options_;
  StoreFiles& files_;
  LinkCache links_;
  RateMeter read_rate_;
  RateMeter write_rate_;
  std::atomic<bool> is_writing_ = false;
  std::atomic<bool> has_warned_of_marker_ = false;
  std::optional<StoreLock> lock_;  // read-write only

  std::mutex room_mutex_;             // held while room is made; before mutex_
  uint64_t known_bytes_ = 0;          // of DIR: as listed last, and what was written since
  uint64_t bytes_since_listing_ = 0;  // written, or about to be

  mutable std::mutex mutex_;
  StoreStats stats_;  // without rates
  using BadFile = std::pair<StoreKey, StoredKind>;
  std::set<BadFile> bad_files_;                 // files that could not be moved away
  std::shared_ptr<const PinnedBlocks> pinned_;  // null: none
};

}  // namespace sluice
