// Byte-pair encoding of one piece of text over a vocabulary of byte strings.
//
// Used by Tokenizer; filled while loading, constant afterwards. Thread rule: const functions may be
// called from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Tokens by id and ids by bytes.
//
// Ids may have holes. Two ids never have the same bytes in the index.
class Vocabulary {
 public:
  // Reserves ids 0 .. num_ids-1, all absent, and index space for as many.
  explicit Vocabulary(size_t num_ids = 0);

  // Gives `id` its bytes; with `indexed`, find() can return it. False when the id is taken or, if
  // indexed, when another id has the same bytes.
  bool add(int32_t id, std::string_view bytes, bool indexed);

  int32_t num_ids() const { return static_cast<int32_t>(entries_.size()); }
  bool has(int32_t id) const;
  // The bytes of a token; empty for an id that is absent or out of range.
  std::string_view bytes(int32_t id) const;
  // The indexed id with exactly these bytes.
  std::optional<int32_t> find(std::string_view bytes) const;

 private:
  // The bytes of one id: arena_[offset, offset + num_bytes).
  struct Entry {
    uint64_t offset = 0;
    uint32_t num_bytes = 0;
    bool present = false;
  };
  struct Slot {
    int32_t id = -1;   // -1 is free
    uint32_t tag = 0;  // upper half of the hash: rejects most unequal entries without their bytes
  };
  // The slot of `bytes`, or the free one where they would go.
  size_t probe(std::string_view bytes, uint64_t hash) const;

  std::string arena_;  // the bytes of all tokens
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // open addressing
};

// The result of merging two neighbours: token `id`. A lower rank merges first.
struct Merge {
  uint32_t rank;
  int32_t id;
};
inline constexpr uint32_t kNoRank = UINT32_MAX;

// Merges by the pair of ids that they join: a hash table with linear probing.
class MergeTable {
 public:
  explicit MergeTable(size_t num_merges = 0);

  // Sets the merge of a pair; a later call for the same pair wins, as in the reference.
  void set(int32_t left, int32_t right, Merge merge);
  // The merge of a pair; its rank is kNoRank when there is none.
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kFree) return {kNoRank, -1};
    }
  }

 private:
  // No pair of ids has this key, since ids are not negative.
  static constexpr uint64_t kFree = UINT64_MAX;
  struct Slot {
    uint64_t key = kFree;
    Merge merge{kNoRank, -1};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  // Multiplicative hashing: the top bits of the product depend on all bits of the key.
  size_t slot_of(uint64_t key) const {
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);
  }

  size_t mask_ = 0;  // slots_.size() - 1
  int shift_ = 63;   // 64 - log2(slots_.size())
  std::vector<Slot> slots_;
};

// The replacement of a byte that has no token. Vocabularies often lack bytes that do not occur in
// their training text: SmolLM2's has 235.
struct UnknownByte {
  int32_t id = -1;    // negative: the byte is left out
  bool fuse = false;  // neighbouring unknown bytes share one token
};

// Merges the bytes of a piece into tokens: repeatedly the pair of lowest rank, of equal ones the
// leftmost, until no neighbours have a merge.
// Source: Sennrich et al. 2016, arXiv 1508.07909, over bytes as in GPT-2.
class BpeMerger {
 public:
  BpeMerger(const Vocabulary& vocabulary, MergeTable merges, UnknownByte unknown = {});

  // Appends the tokens of `piece` to `out`, perhaps none. Bytes without a token are replaced or
  // left out before anything merges, so their neighbours can merge with each other, as in the
  // reference.
  //
  // Short pieces are scanned for the lowest rank (fastest in practice), long ones use a linked list
  // and a queue by rank, so time is at most n log n whatever the text.
  // REQUIRES: fewer than 2^32 bytes.
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  void encode_short(std::string_view piece, std::vector<int32_t>& out) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& out) const;
  // Writes the tokens of the bytes to `ids` (room for one per byte) and returns their number.
  size_t byte_ids(std::string_view piece, int32_t* ids) const;

  std::array<int32_t, 256> id_of_byte_{};  // of the unknown token, or -1, for unknown bytes
  std::array<bool, 256> is_unknown_{};
  bool fuse_unknown_ = false;
  MergeTable merges_;
};

// Mixes bytes into 64 bits, for the tables of this folder. Not stable between versions.
uint64_t hash_bytes(std::string_view bytes);

}  // namespace sluice
