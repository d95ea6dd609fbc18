// Writing the entries of a tile mask, for the ops that select tiles.
//
// Thread rule: entries of different lists and query tiles may be written at the same time.
#pragma once

#include <algorithm>
#include <atomic>

#include "ops/attention.h"
#include "ops/tile_rule.h"

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

// Writes entry `entry` of the rows: what choose(QueryTile) gives, or zeros if the query tile has no
// rows. Adds to the counts.
template <typename F>
void write_mask_entry(const MaskCall& call, int32_t list_head, int32_t entry, const F& choose) {
  const int32_t mask_entry = call.first_entry + entry;
  uint32_t* words = call.bits + (static_cast<int64_t>(list_head) * call.num_q_tiles + mask_entry) *
                                    call.num_words;
  std::fill_n(words, call.num_words, 0u);
  const QueryTile tile{.q_tile = call.first_q_tile + mask_entry, .prompt_end = call.prompt_end};
  if (tile.q_tile * kMaskTileTokens >= call.end_pos()) return;
  const TileSelection selection = choose(tile);
  int64_t num_set = 0;
  for (size_t j = 0; j < selection.is_set.size(); ++j) {
    if (!selection.is_set[j]) continue;
    words[j / 32] |= 1u << (j % 32);
    ++num_set;
  }
  if (call.counts == nullptr) return;
  const auto add = [&](int index, int64_t value) {
    std::atomic_ref(call.counts[index]).fetch_add(value, std::memory_order_relaxed);
  };
  add(0, num_set);
  add(1, std::ssize(selection.is_set));
  add(2, selection.num_cut);
}

}  // namespace sluice::cpu
