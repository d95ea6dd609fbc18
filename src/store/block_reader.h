// BlockReader: reads the sections of one stored block and checks everything that it reads.
//
// Used by block_store, and by the check of a whole directory (store_folder.h). A fault of the file
// is a text, "" if there is none: what was read is then right up to the strength of its checksums.
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/block_file.h"
#include "store/store_files.h"

namespace sluice {

// Where a summary goes. `is_found` is set only if the file has it in this format.
struct SummaryTarget {
  SummaryFormat format;
  std::span<std::byte> bytes;  // format.num_bytes of them
  bool is_found = false;
};

// Where KV goes: the layers in order, each with layer_bytes in one part or in several.
using LayerTargets = std::span<const std::span<std::byte>>;

class BlockReader {
 public:
  // `fd` is open for reading and has `num_bytes`; it stays open.
  BlockReader(StoreFiles& files, int fd, uint64_t num_bytes)
      : files_(files), fd_(fd), num_bytes_(num_bytes) {}

  // Reads header and token ids: they must agree with each other, the key with parent and tokens,
  // and the file's length with the header.
  std::string open();
  // After open: whether the block is the one that is wanted, tokens compared one by one.
  std::string compare(const StoreFormat& format, const BlockPlace& place,
                      std::span<const int32_t> tokens) const;
  // After compare: reads KV and the summaries that are there. After a fault, the bytes of all
  // targets are undefined.
  std::string read(LayerTargets layers, std::span<SummaryTarget> summaries);
  // After open: reads KV and all summaries into a buffer of its own. Cost: 1 MiB.
  std::string check();

  // REQUIRES: open has found no fault.
  const BlockHeader& header() const { return header_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  std::string read_into(std::string_view name, const FileSection& section, LayerTargets parts);
  std::string check_section(std::string_view name, const FileSection& section);
  std::string describe(std::string_view name, int error) const;

  StoreFiles& files_;
  int fd_;
  uint64_t num_bytes_;
  BlockHeader header_;
  std::vector<int32_t> tokens_;
};

// Bytes of one call of the system: few calls, while the bytes are still in the processor's cache
// when they are hashed.
inline constexpr size_t kStoreChunkBytes = size_t{1} << 20;

}  // namespace sluice
