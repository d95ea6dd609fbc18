// hot_pages: the cache of pages that sparse decode reads again, kept entirely on the device.
//
// `find_hot_pages` looks up the pages that a decode step lists, and gives each missing one a place;
// `fetch_hot_pages` copies the missing ones from pinned host memory into their places;
// `forget_hot_pages` removes blocks whose contents change. Attention reads the places
// (PageList::places, ops/attention/attention.h). Used by kv/hot_page_cache, and by
// model/experts/expert_cache, for which an expert is a page and a layer is a set. The host enqueues
// the same work for any lists. Thread rule: enqueue only.
//
// A set is the cache of one (layer, KV head). A page has the key block id * pages_per_block + page
// of the block, so sequences that share a block share its pages. The page used least recently makes
// room, in a fixed order that no timing changes:
//
//   uses          a log of places, one entry for each listed page, in order of step, sequence, list
//   newest_use    of a place, the number of its newest entry of the log: older ones are void
//   next victim   the first entry of the log that is not void; void ones are dropped for good, so a
//                 log is read once
//   full log      the entries that are not void move to its beginning and are numbered again
#pragma once

#include <cstdint>
#include <span>

#include "core/arena.h"
#include "core/ids.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/kv_blocks.h"

namespace sluice {

// Fill the state with this byte once, before the first use; it is then empty.
inline constexpr uint8_t kEmptyHotPagesByte = 0x80;

// The value of a key without a place, and of a place without a key. Smaller than the marks of
// missing pages that find_hot_pages writes in between, -1 - (number of the entry).
inline constexpr int32_t kNoHotPage = static_cast<int32_t>(0x80808080u);

// Positions in HotPageSets::cursors.
inline constexpr int32_t kLogBegin = 0;    // entries before it are void
inline constexpr int32_t kLogEnd = 1;      // entries from it on do not exist yet
inline constexpr int32_t kPlacesUsed = 2;  // places that have ever been used, the first ones
inline constexpr int32_t kNumCursors = 3;

// The log of a set has room for this many entries for each place; with a step's entries at most the
// places, it is made shorter every other step at most.
inline constexpr int64_t kUsesPerPlace = 4;

// Device memory of some sets; only these ops write it.
struct HotPageSets {
  TensorView place_of_key;  // i32 [num_sets, num_keys], or kNoHotPage
  TensorView key_of_place;  // i32 [num_sets, num_places], or kNoHotPage
  TensorView newest_use;    // i32 [num_sets, num_places]: index in `uses`
  TensorView uses;          // i32 [num_sets, kUsesPerPlace * num_places]: places
  TensorView cursors;       // i32 [num_sets, kNumCursors]; kNoHotPage stands for 0

  // `count` of the sets.
  HotPageSets rows(int64_t first, int64_t count) const;
};

// Cuts them as one range of the arena.
HotPageSets cut_hot_page_sets(Arena& arena, int64_t num_sets, int64_t num_keys, int64_t num_places);

// The pages that a step must fetch, in order of sequence and list.
struct MissingPages {
  TensorView keys;    // i32 [num_sets, num_places]
  TensorView places;  // i32 [num_sets, num_places]
  TensorView count;   // i32 [num_sets]
};

// Positions in FindHotPagesArgs::counts.
inline constexpr int32_t kHotHits = 0;       // listed pages that were in the cache, or that another
                                             // sequence of the step fetches
inline constexpr int32_t kHotMisses = 1;     // pages to fetch
inline constexpr int32_t kHotEvictions = 2;  // of these: the place had another page
inline constexpr int32_t kNumHotCounts = 3;

struct FindHotPagesArgs {
  HotPageSets sets;      // of one layer: num_sets is num_kv_heads
  PageList pages;        // entries [0, num_entries) of each list; the rest of it is not read but
                         // page_tokens
  TensorView block_ids;  // i32 [num_seqs, max_blocks]: entry j of a row is the block that holds
                         // tokens [j, j + 1) * block_tokens of the sequence
  TensorView kv_end;     // i32 [num_seqs]: pages that begin here or later are skipped
  int32_t block_tokens = 0;
  TensorView places;  // i32 [num_seqs, num_kv_heads, 1, max_places]: of each entry that is
                      // not skipped; others are not written
  MissingPages missing;
  TensorView counts;      // i64 [kNumHotCounts]: added to
  KvBlocksView poisoned;  // debug builds: the memory of the places, as in FetchHotPagesArgs; the
                          // places of missing pages are filled with NaN. Absent: they are not
};

// Finds a place for every listed page of every sequence, and lists the pages that must be fetched.
// Pages that the step lists lose no place in it. The result depends on the earlier calls alone.
// Shapes: num_seqs * pages.num_entries <= num_places; num_entries <= max_pages and max_places;
// one list per KV head or one for all of them. Tensors of `missing` are as wide as a step has
// entries, at least.
// Types: i32 ids and tables; counts are i64.
// Aliasing: none.
// Order: enqueue only; lists may be written by earlier kernels, block_ids and kv_end too.
// Errors: those of every op (ops/ops.h). On the CPU a page after the last of block_ids, or a key
// that does not exist, is a failed check; CUDA does not check.
void find_hot_pages(Stream& stream, const FindHotPagesArgs& args);

struct FetchHotPagesArgs {
  KvBlocksView src;      // all blocks of one layer in PINNED host memory
  KvBlocksView dst;      // device memory: head h of block p is place p of set h; blocks of a page
  MissingPages missing;  // of the layer's sets
  TensorView num_bytes;  // i64 [1], device memory: the bytes read from src are added
};

// Copies the keys and values of the missing pages into their places.
// Shapes: src.shape.block_tokens is a multiple of dst.shape.block_tokens, the tokens of a page; the
// same heads and channels; head_dim is a multiple of 16.
// Types: bytes of bf16 keys and values; i32 tables; the count is i64.
// Aliasing: `dst` does not overlap `src`.
// Order: enqueue only. On CUDA a kernel reads the pinned memory through the bus.
// Errors: those of every op (ops/ops.h). On the CPU a key or place that does not exist is a failed
// check; CUDA does not check.
void fetch_hot_pages(Stream& stream, const FetchHotPagesArgs& args);

struct ForgetHotPagesArgs {
  HotPageSets sets;                    // of any number of layers
  std::span<const BlockId> block_ids;  // read before the call returns
  int32_t pages_per_block = 0;
};

// Removes all pages of some blocks from all sets. Their places keep their turn as victims.
// Shapes: (id + 1) * pages_per_block <= num_keys for each id.
// Types: i32 tables.
// Aliasing: none; an id may be listed more than once.
// Order: enqueue only; the ids are taken before the call returns.
// Errors: those of every op (ops/ops.h).
void forget_hot_pages(Stream& stream, const ForgetHotPagesArgs& args);

}  // namespace sluice
