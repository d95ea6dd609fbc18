// Writing the entries of a tile mask, for the ops that select tiles.
//
// Thread rule: entries of different lists and query tiles may be written at the same time.
#pragma once

#include <algorithm>
#include <atomic>

#include "ops/attention/attention.h"
#include "ops/tiles/tile_rule.h"

namespace sluice::cpu {

// A mask, the rows whose entries are written, and the counts as plain pointers.
struct MaskCall {
  const int32_t* row_begin;
  const int32_t* first_pos;
  int64_t prompt_end;
  uint32_t* bits;   // [num_list_heads][num_q_tiles][num_words]
  int64_t* counts;  // set, visible, cut; or null
  int32_t num_list_heads;
  int32_t num_q_tiles;
  int32_t num_words;
  int32_t first_q_tile;  // of the mask
  int32_t first_entry;   // of the rows, in the mask
  int32_t num_entries;

  int32_t end_pos() const { return *first_pos + row_begin[1] - row_begin[0]; }
  int32_t first_q_tile_of_rows() const { return first_q_tile + first_entry; }
  // Of entry `entry` of the rows.
  QueryTile tile_of(int32_t entry) const {
    return {.q_tile = first_q_tile_of_rows() + entry, .prompt_end = prompt_end};
  }
  bool has_rows(const QueryTile& tile) const { return tile.first_row() < end_pos(); }
  uint32_t* words_of(int32_t list_head, int32_t entry) const {
    return bits + (static_cast<int64_t>(list_head) * num_q_tiles + first_entry + entry) * num_words;
  }
};

// Of SelectTilesArgs, SelectDiagonalsArgs.
template <typename Args>
MaskCall make_mask_call(const Args& args) {
  const TensorView& bits = args.mask.bits;
  return {.row_begin = args.batch.row_begin.template data<int32_t>(),
          .first_pos = args.batch.first_pos.template data<int32_t>(),
          .prompt_end = args.prompt_end,
          .bits = reinterpret_cast<uint32_t*>(bits.template data<int32_t>()),
          .counts = reinterpret_cast<int64_t*>(args.counts.bytes()),
          .num_list_heads = static_cast<int32_t>(bits.dim(1)),
          .num_q_tiles = static_cast<int32_t>(bits.dim(2)),
          .num_words = static_cast<int32_t>(bits.dim(3)),
          .first_q_tile = args.mask.first_q_tile,
          .first_entry = args.rows.first / kMaskTileTokens,
          .num_entries = args.rows.num_q_tiles()};
}

inline void add_to_count(const MaskCall& call, int index, int64_t value) {
  if (call.counts == nullptr) return;
  std::atomic_ref(call.counts[index]).fetch_add(value, std::memory_order_relaxed);
}

// Adds to entry `entry` of the rows what choose(QueryTile) gives, if the query tile has rows, and
// to the counts what was not set.
template <typename F>
void add_to_mask_entry(const MaskCall& call, int32_t list_head, int32_t entry, const F& choose) {
  const QueryTile tile = call.tile_of(entry);
  if (!call.has_rows(tile)) return;
  uint32_t* words = call.words_of(list_head, entry);
  const TileSelection selection = choose(tile);
  int64_t num_set = 0;
  for (size_t j = 0; j < selection.is_set.size(); ++j) {
    const uint32_t bit = 1u << (j % 32);
    if (!selection.is_set[j] || (words[j / 32] & bit) != 0) continue;
    words[j / 32] |= bit;
    ++num_set;
  }
  add_to_count(call, 0, num_set);
  add_to_count(call, 2, selection.num_cut);
}

// Writes the entry: what choose(QueryTile) gives, or zeros if the query tile has no rows. Adds to
// the counts.
template <typename F>
void write_mask_entry(const MaskCall& call, int32_t list_head, int32_t entry, const F& choose) {
  std::fill_n(call.words_of(list_head, entry), call.num_words, 0u);
  const QueryTile tile = call.tile_of(entry);
  if (call.has_rows(tile)) add_to_count(call, 1, tile.q_tile + 1);
  add_to_mask_entry(call, list_head, entry, choose);
}

}  // namespace sluice::cpu
