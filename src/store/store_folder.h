// The files of a store's directory: their paths, and lists of what is there.
//
//   DIR/sluice-kv-store                            the marker: files may be removed here
//   DIR/lock                                       held while blocks are evicted
//   DIR/<fingerprint, 16 digits>/<key, 2 digits>/<key>.kv     a block
//   DIR/<fingerprint, 16 digits>/<key, 2 digits>/<key>.state  the states after it
//   DIR/<fingerprint, 16 digits>/<key, 2 digits>/<key>.<random>.part   one that is written
//   DIR/bad/<fingerprint, 16 digits>-<key>.kv, .state         files that failed a check
//
// Used by block_store and by `sluice store`. Other programs may add and remove files at any time,
// so what a list has may be gone when it is used. Everything else is foreign, and is left alone:
// other names, other places, and whatever is no regular file or no real folder.
// Thread rule: pure functions; LinkCache has a mutex.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "store/block_file.h"
#include "store/store_files.h"
#include "store/store_key.h"

namespace sluice {

StorePath block_path(const std::filesystem::path& dir, const Fingerprint& fingerprint,
                     const StoreKey& key, StoredKind kind = StoredKind::kKv);
StorePath bad_path(const std::filesystem::path& dir, const Fingerprint& fingerprint,
                   const StoreKey& key, StoredKind kind = StoredKind::kKv);
// Another name with each call, beside `block`.
StorePath temporary_path(const StorePath& block);

// A file with a block's name; what it holds is not known.
struct StoredFile {
  StorePath path;
  std::string folder;  // the first 16 digits of its fingerprint
  StoreKey key;
  uint64_t num_bytes = 0;
  int64_t used_ns = 0;  // last use, in nanoseconds of the file system's clock
  StoredKind kind = StoredKind::kKv;
};

struct StoreListing {
  std::vector<StoredFile> blocks;  // sorted by folder and key
  std::vector<StoredFile> states;  // likewise
  std::vector<StoredFile> bad;     // without key
  std::vector<StoredFile> parts;   // of writers that are at work or have died; without key

  // The first that was met of what is not the store's, if there is any. A `lost+found`, with which
  // file systems begin, does not count.
  std::optional<std::filesystem::path> foreign;

  uint64_t num_bytes() const;  // of all lists
};

// Lists a directory. What cannot be read is left out.
// Errors: kIo naming `dir` if it is absent, no directory or unreadable.
StoreListing list_store(const std::filesystem::path& dir);

inline constexpr const char* kStoreMarker = "sluice-kv-store";

// Whether files may be removed from a directory: it has the marker, a regular file. A directory
// that holds nothing foreign gets it here, so a new one, or one of a version without markers, needs
// no other step; its user may also make it. False for one with foreign files, and for one that
// cannot be read or written. Cost: lists the directory if there is no marker.
bool may_remove_from(const std::filesystem::path& dir);

// Why nothing is removed from a directory without marker, and what to do: for messages.
std::string missing_marker_text(const std::filesystem::path& dir);

// Checks all that is in a block's file, and that its path is that of its key and fingerprint: what
// is wrong, "" if nothing. Cost: reads the whole file.
std::string check_stored_file(StoreFiles& files, const StoredFile& file);

// Whether no process writes this file any more: the lock that a writer holds is gone. False if it
// cannot be opened.
bool is_abandoned(const StorePath& part);

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
