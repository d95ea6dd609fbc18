// The bytes of a stored block: a header of 4 KiB, the token ids, KV of all layers, summaries.
//
//   offset            bytes
//   0                 4096              header: BlockHeader and a checksum of its own
//   4096              4 x block_tokens  token ids, little-endian int32
//   next 4 KiB        kv_bytes          the block of layer 0, of layer 1, ... side by side
//   next 4 KiB        as in the header  a summary; each begins at a border of 4 KiB
//
// A file of states (StoredKind) is the same with another magic: its layers are those with recurrent
// states, after the block's last token. docs/kv_store.md has the header byte by byte. The file ends
// with its last section. Every number in the header but the checksums follows from the layout and
// the sizes of the summaries, so a header is accepted only if it has exactly these numbers:
// encode_header(*decode_header(x).header) is x. Used by block_reader, block_writer and eviction.
// Thread rule: pure functions and values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/store_key.h"

namespace sluice {

inline constexpr uint32_t kBlockFileVersion = 1;
inline constexpr uint64_t kBlockHeaderBytes = 4096;
// Sections after the token ids begin at multiples of this, for reads that bypass the page cache.
inline constexpr uint64_t kSectionAlignment = 4096;
inline constexpr size_t kMaxSummaries = 32;
inline constexpr size_t kMaxSummaryName = 23;  // characters

// What a file holds of a block: KV of its tokens, or the recurrent states of a hybrid model after
// them. A key may have a file of each.
enum class StoredKind : uint8_t { kKv, kState };

// The shape of a block, or of states: the same for all files of a fingerprint and kind.
struct StoreLayout {
  int32_t block_tokens = 0;
  int32_t num_layers = 0;
  uint64_t layer_bytes = 0;  // K and V of one layer, or its state

  bool operator==(const StoreLayout&) const = default;
  uint64_t kv_bytes() const { return static_cast<uint64_t>(num_layers) * layer_bytes; }
};

// Errors: kInvalidArgument if a size is not positive or absurdly large (2^20 tokens, 2^16 layers,
// 2^40 bytes in all).
void validate_layout(const StoreLayout& layout);

// What a policy stores for each page of keys. A reader whose policy has another page size, or
// another name for its arithmetic, does not find it and computes it from the keys.
struct SummaryFormat {
  std::string name;  // 1 to kMaxSummaryName of [a-z0-9_.-]
  int32_t page_tokens = 0;
  uint64_t num_bytes = 0;  // of all layers

  bool operator==(const SummaryFormat&) const = default;
};

struct FileSection {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
  uint64_t checksum = 0;
};

struct SummarySection {
  SummaryFormat format;
  FileSection section;
};

// What all blocks of an engine have in common.
struct StoreFormat {
  Fingerprint fingerprint;
  StoreLayout layout;       // of KV
  StoreLayout states = {};  // of states; without layers if the model has none

  bool operator==(const StoreFormat&) const = default;
  const StoreLayout& layout_of(StoredKind kind) const {
    return kind == StoredKind::kKv ? layout : states;
  }
};

// Where a block is in which sequence of tokens. Equal keys mean equal tokens from position 0 on.
struct BlockPlace {
  StoreKey key;
  StoreKey parent;       // of the block before it, or root_key
  int64_t position = 0;  // of its first token; a multiple of block_tokens
  StoredKind kind = StoredKind::kKv;

  bool operator==(const BlockPlace&) const = default;
};

struct BlockHeader {
  StoreFormat format;
  BlockPlace place;
  FileSection tokens;
  FileSection kv;  // or states
  std::vector<SummarySection> summaries;

  const StoreLayout& layout() const { return format.layout_of(place.kind); }
  uint64_t file_bytes() const;
};

// A header whose sections lie as they must; checksums are 0.
// REQUIRES (checked): a valid layout, at most kMaxSummaries, valid names.
BlockHeader make_header(const StoreFormat& format, const BlockPlace& place,
                        std::span<const SummaryFormat> summaries = {});

using HeaderBytes = std::array<std::byte, kBlockHeaderBytes>;

HeaderBytes encode_header(const BlockHeader& header);

// A header, or what is wrong with the bytes, as "header: its checksum does not agree".
struct DecodedHeader {
  std::optional<BlockHeader> header;
  std::string fault;
};

// Reads the first 4 KiB of a file; fewer bytes are a fault. Never throws for what the bytes are.
DecodedHeader decode_header(std::span<const std::byte> bytes);

}  // namespace sluice
