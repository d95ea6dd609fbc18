// The files of a store's directory: their paths, and lists of what is there.
//
//   DIR/lock                                       held while blocks are evicted
//   DIR/<fingerprint, 16 digits>/<key, 2 digits>/<key>.kv     a block
//   DIR/<fingerprint, 16 digits>/<key, 2 digits>/<key>.<random>.part   one that is written
//   DIR/bad/<fingerprint, 16 digits>-<key>.kv      files that failed a check
//
// Used by block_store and by `sluice store`. Other programs may add and remove files at any time,
// so what a list has may be gone when it is used. Files of other names are left alone.
// Thread rule: pure functions; LinkCache has a mutex.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "store/store_files.h"
#include "store/store_key.h"

namespace sluice {

std::filesystem::path block_path(const std::filesystem::path& dir, const Fingerprint& fingerprint,
                                 const StoreKey& key);
std::filesystem::path bad_path(const std::filesystem::path& dir, const Fingerprint& fingerprint,
                               const StoreKey& key);
// Another name with each call, beside `block`.
std::filesystem::path temporary_path(const std::filesystem::path& block);

// A file with a block's name; what it holds is not known.
struct StoredFile {
  std::filesystem::path path;
  std::string folder;  // the first 16 digits of its fingerprint
  StoreKey key;
  uint64_t num_bytes = 0;
  int64_t used_ns = 0;  // last use, in nanoseconds of the file system's clock
};

struct StoreListing {
  std::vector<StoredFile> blocks;  // sorted by folder and key
  std::vector<StoredFile> bad;     // without key
  std::vector<StoredFile> parts;   // of writers that are at work or have died; without key

  uint64_t num_bytes() const;  // of all three
};

// Lists a directory. What cannot be read is left out.
// Errors: kIo naming `dir` if it is absent, no directory or unreadable.
StoreListing list_store(const std::filesystem::path& dir);

// Checks all that is in a block's file, and that its path is that of its key and fingerprint: what
// is wrong, "" if nothing. Cost: reads the whole file.
std::string check_stored_file(StoreFiles& files, const StoredFile& file);

// Whether no process writes this file any more: the lock that a writer holds is gone. False if it
// cannot be opened.
bool is_abandoned(const std::filesystem::path& part);

// What eviction needs to know of a block beside its file: immutable, so it is read once.
struct BlockLink {
  StoreKey parent;
  int64_t position = 0;
  int32_t block_tokens = 0;
};

// Reads the links of blocks and remembers them.
class LinkCache {
 public:
  explicit LinkCache(StoreFiles& files) : files_(files) {}

  // Empty if the file cannot be read or its header is damaged.
  std::optional<BlockLink> find(const StoredFile& file);
  void enter(const std::string& folder, const StoreKey& key, const BlockLink& link);
  // Forgets everything if that is more than a listing of `num_blocks` needs: other processes evict
  // blocks, too.
  void trim(size_t num_blocks);

 private:
  using Name = std::pair<std::string, StoreKey>;

  StoreFiles& files_;
  std::mutex mutex_;
  std::map<Name, BlockLink> links_;
};

}  // namespace sluice
