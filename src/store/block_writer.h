// write_block: writes one stored block under a temporary name and then gives it its name.
//
// Used by block_store. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "store/block_file.h"
#include "store/store_files.h"

namespace sluice {

struct SummarySource {
  SummaryFormat format;
  std::span<const std::byte> bytes;  // format.num_bytes of them
};

// One block in memory.
struct BlockSource {
  BlockPlace place;
  std::span<const int32_t> tokens;                     // block_tokens of them
  std::span<const std::span<const std::byte>> layers;  // as LayerTargets
  std::span<const SummarySource> summaries = {};
};

// The number of bytes that the block's file has. REQUIRES: as make_header.
uint64_t block_file_bytes(const StoreFormat& format, const BlockSource& source);

// Writes all sections to `temporary`, the header last, then renames it to `path`.
//
// The bytes are not flushed to the disk: a block that a power cut damages fails its checks and is
// computed again, while a flush of every block would hold up the writer and other programs. The
// name appears only after every write has succeeded, so no program ever sees half a block.
// Returns 0 or an errno; then neither file exists, unless `path` did before.
// Errors: std::bad_alloc.
int write_block(StoreFiles& files, const StoreFormat& format, const BlockSource& source,
                const StorePath& temporary, const StorePath& path);

}  // namespace sluice
