// StoreRates: the time that stored KV and plain files of the same sizes take on one file system.
//
// Used by `sluice-lab store`. Both write and read the same bytes in pieces of the same size, with
// as many threads. The plain side has no header, no checksum and no name to find: it is what the
// file system gives to any program that reads and writes in the same way.
// Thread rule: main thread; the measurements start and join threads of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "lab/options.h"
#include "store/block_file.h"
#include "store/store_key.h"

namespace sluice::lab {

// Bytes per second of one pass over all blocks.
struct PassRates {
  double write = 0;      // until the bytes are on the disk
  double disk_read = 0;  // after the page cache was asked to drop them
  double cache_read = 0;
  double cached_share = 0;  // of the bytes, that the page cache kept before disk_read
};

// A folder inside of DIR with the files of one run; removed with everything in it.
class StoreBenchFolder {
 public:
  // Errors: kInvalidArgument: `dir` is no directory. kIo: it is not writable.
  explicit StoreBenchFolder(const std::filesystem::path& dir);
  ~StoreBenchFolder();
  StoreBenchFolder(const StoreBenchFolder&) = delete;
  StoreBenchFolder& operator=(const StoreBenchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class StoreRates {
 public:
  // Cost: memory for all blocks, filled with random bytes.
  StoreRates(const BenchStoreCommand& command, const std::filesystem::path& folder);

  // Each writes and reads all blocks once and removes its files.
  // Errors: kIo if a file cannot be written or read. Interrupted.
  PassRates plain_pass();
  PassRates store_pass();

  uint64_t bytes_per_pass() const;

 private:
  using Paths = std::vector<std::filesystem::path>;

  std::span<std::byte> block(int32_t index);
  std::vector<std::span<std::byte>> layers(int32_t index);
  BlockPlace place(int32_t index);
  double write_plain(const Paths& paths);
  double write_store(const Paths& paths);
  double read_plain(const Paths& paths);
  double read_store();

  const BenchStoreCommand& command_;
  std::filesystem::path folder_;
  StoreFormat format_;
  std::vector<int32_t> tokens_;  // of every block: only the parents of the keys differ
  std::vector<std::byte> memory_;
  int32_t num_passes_ = 0;
};

}  // namespace sluice::lab
