// The walk over the KV tokens of one work item, and where a tile of them lies.
//
// Included by the attention/<isa>.cc files only; each gets its own copy, compiled for its ISA
// (hence the unnamed namespace in a header; see attention/kernel.h). Thread rule: pure functions.
#pragma once

#include <cstring>

#include "ops/cpu/attention/kernel.h"
#include "ops/kv_rounding.h"

namespace sluice {
namespace {

// std::min is an inline function of another header, which these files must not instantiate.
inline int32_t min_of(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t max_of(int32_t a, int32_t b) { return a > b ? a : b; }

// One past the last token that row `row` of the item sees.
inline int32_t row_limit(const AttentionItem& item, int32_t row) {
  if (item.row_limits != nullptr) return item.row_limits[row];
  return min_of(item.first_pos + row + 1, item.kv_end);
}

// Sixteen tokens of the sequence from an absolute position on, and the block that holds them.
struct Tile {
  int32_t position;
  int32_t block;
};

// Enumerates the tiles that the last row of the item sees, in ascending order: all of them, or
// those that the page list or the tile mask names. Earlier rows see a prefix of the same tiles.
class TileCursor {
 public:
  explicit TileCursor(const AttentionItem& item)
      : item_(item),
        end_(row_limit(item, item.num_rows - 1)),
        page_tokens_(item.tile_bits != nullptr ? kBitTileTokens : item.page_tokens),
        page_(item.tile_bits != nullptr ? item.kv_begin / kBitTileTokens : 0) {
    if (has_pages()) {
      next_page();
    } else {
      position_ = item.kv_begin;
      page_end_ = end_;
    }
  }

  // Writes at most `max_tiles` tiles and returns how many; 0 when the walk is over.
  int32_t take(Tile* tiles, int32_t max_tiles) {
    int32_t count = 0;
    while (count < max_tiles) {
      if (position_ < page_end_) {
        tiles[count++] = {position_, block()};
        position_ += kTileTokens;
      } else if (!has_pages() || !next_page()) {
        break;
      }
    }
    return count;
  }

 private:
  // Whether tiles are selected: by a list of pages, or by bits, which are pages of their own size.
  bool has_pages() const { return item_.page_ids != nullptr || item_.tile_bits != nullptr; }

  // Goes on to the next selected page that has a token of this run; false after the last.
  bool next_page() {
    for (int32_t id = next_id(); id >= 0; id = next_id()) {
      const int32_t begin = id * page_tokens_;
      position_ = max_of(begin, item_.kv_begin);
      page_end_ = min_of(begin + page_tokens_, end_);
      if (position_ < page_end_) return true;
    }
    position_ = page_end_ = end_;
    return false;
  }

  // The next page of the list, or the next bit before the last visible token; -1 after the last.
  int32_t next_id() {
    if (item_.tile_bits == nullptr) {
      return page_ < item_.num_pages ? item_.page_ids[page_++] : -1;
    }
    while (page_ * kBitTileTokens < end_) {
      const uint32_t rest = item_.tile_bits[page_ / 32] >> (page_ % 32);
      if (rest != 0) {
        page_ += __builtin_ctz(rest);
        return page_++;
      }
      page_ = (page_ / 32 + 1) * 32;
    }
    return -1;
  }

  // A gathered page lies in the block of its index in the list, or in its place; any other is found
  // by its position.
  int32_t block() const {
    if (item_.block_table == nullptr) return page_ - 1;
    if (item_.is_by_entry) return item_.block_table[page_ - 1];
    return item_.block_table[(position_ - item_.kv_begin) / item_.block_tokens];
  }

  const AttentionItem& item_;
  const int32_t end_;
  const int32_t page_tokens_;
  int32_t page_;  // index in the list; with bits the next tile
  int32_t position_ = 0;
  int32_t page_end_ = 0;
};

// Rows of the item before this one see no tile from `position` on.
inline int32_t first_row_that_sees(const AttentionItem& item, int32_t position) {
  if (item.row_limits != nullptr) return 0;
  return max_of(0, min_of(item.num_rows, position - item.first_pos));
}

// Where a tile of keys and values lies.
struct TileBytes {
  const std::byte* k;
  const std::byte* v;
};

inline int32_t key_bytes(const AttentionItem& item) {
  return item.keys_in_bf16 ? item.head_dim * 2 : item.token_bytes;
}

inline TileBytes tile_bytes(const AttentionItem& item, Tile tile) {
  const std::byte* keys = item.blocks + static_cast<size_t>(tile.block) * item.block_stride_bytes;
  // Blocks and gathered pages begin at multiples of their size.
  const int64_t token = tile.position % item.block_tokens;
  return {keys + token * key_bytes(item), keys + item.half_bytes + token * item.token_bytes};
}

// The keys and values of a tile, bf16 [tokens][head_dim] each. Only the first `num_tokens` may be
// read: the rest of the block may be unwritten, or written by another stream now.
struct TileSource {
  const uint16_t* k;
  const uint16_t* v;
  int32_t num_tokens;
};

// The first `num_tokens` rows of a tile of one byte a number, whose scales follow its 16 rows.
inline const uint16_t* read_tile(KvElement element, const std::byte* tile, int32_t num_tokens,
                                 int32_t head_dim, uint16_t* to) {
  const auto* rows = reinterpret_cast<const uint8_t*>(tile);
  const uint8_t* scales = rows + static_cast<int64_t>(kTileTokens) * head_dim;
  for (int32_t t = 0; t < num_tokens; ++t) {
    const int64_t row = static_cast<int64_t>(t) * head_dim;
    read_kv_row(element, rows + row, scales[t], head_dim, to + row);
  }
  return to;
}

// `slot`, below kRoomTiles: where keys of one byte a number are read to. They stay there until it
// is used again, the values until the next call.
inline TileSource tile_source(const AttentionItem& item, Tile tile, int32_t slot) {
  const TileBytes bytes = tile_bytes(item, tile);
  const int32_t num_tokens = min_of(kTileTokens, item.kv_end - tile.position);
  if (item.room == nullptr) {
    return {reinterpret_cast<const uint16_t*>(bytes.k), reinterpret_cast<const uint16_t*>(bytes.v),
            num_tokens};
  }
  const int64_t tile_elements = static_cast<int64_t>(kTileTokens) * item.head_dim;
  const uint16_t* keys = item.keys_in_bf16
                             ? reinterpret_cast<const uint16_t*>(bytes.k)
                             : read_tile(item.element, bytes.k, num_tokens, item.head_dim,
                                         item.room + slot * tile_elements);
  return {keys,
          read_tile(item.element, bytes.v, num_tokens, item.head_dim,
                    item.room + kRoomTiles * tile_elements),
          num_tokens};
}

// Prefetches a tile of the next chunk, a few lines at a time between other work: with few rows the
// walk is bound by DRAM, and the hardware prefetcher does not recognise the transposing loads of
// keys. Prefetching all lines at once would fill the miss queue and delay the current loads.
class TilePrefetch {
 public:
  TilePrefetch() = default;
  TilePrefetch(const AttentionItem& item, Tile tile) {
    const TileBytes bytes = tile_bytes(item, tile);
    k_ = reinterpret_cast<const char*>(bytes.k);
    v_ = reinterpret_cast<const char*>(bytes.v);
    left_bytes_ = min_of(kTileTokens, item.kv_end - tile.position) * key_bytes(item);
  }

  // The next `num_lines` cache lines of the keys and as many of the values.
  void step(int num_lines) {
    for (int i = 0; i < num_lines && left_bytes_ > 0; ++i, left_bytes_ -= kLineBytes) {
      __builtin_prefetch(k_, 0, 2);
      __builtin_prefetch(v_, 0, 2);
      k_ += kLineBytes;
      v_ += kLineBytes;
    }
  }

 private:
  static constexpr int32_t kLineBytes = 64;

  const char* k_ = nullptr;
  const char* v_ = nullptr;
  int32_t left_bytes_ = 0;
};

}  // namespace
}  // namespace sluice
