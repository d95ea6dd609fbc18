// The arithmetic of page selection: bounds of keys, scores from them, lists from scores.
//
// Used by attention/policies. Three ops, because policies combine them differently: Quest uses all
// three, Streaming only the last. Everything stays on the device; the host never reads the lists.
// Tables (batch, kv_begin, kv_end, block_table, block_ids) are written as in
// ops/attention/attention.h: never by a kernel. Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/kv_blocks.h"

namespace sluice {

// Smallest and largest key per page, KV head and channel, for every block of one layer, or of
// several, one after the other.
// minmax: bf16 [num_blocks, pages_per_block, num_kv_heads, 2, head_dim]: minima, then maxima.
// Exact, since keys are bf16. Page p of a sequence is entry [block_ids[p / pages_per_block]] [p %
// pages_per_block].
struct KeyBounds {
  TensorView minmax;
  int32_t page_tokens = 0;
};

struct UpdateKeyBoundsArgs {
  AttentionBatch batch;    // the rows whose keys were just written
  KvBlocksView kv;         // where those rows' blocks lie now
  TensorView kv_begin;     // i32 [num_seqs]: as in AttentionArgs
  TensorView block_table;  // i32 [num_seqs, max_blocks]: as in AttentionArgs
  TensorView block_ids;    // i32 [num_seqs, max_ids]: entry j is the id, in `bounds`, of the block
                           // that holds tokens [j, j + 1) * block_tokens; negative: its pages are
                           // left out
  KeyBounds bounds;        // of each layer, num_blocks / num_layers blocks
  int32_t num_layers = 1;  // whose rows were written; `kv` is the first one's
  int64_t layer_stride_bytes = 0;  // from a block of a layer to that of the next
};

// Computes the bounds of every page that holds a row of the batch, from all tokens of the page up
// to the sequence's last row. Bounds depend on the keys only, not on the passes that
// wrote them. A call for all layers of a decode step takes as long as one for a layer.
// Shapes: block_tokens = pages_per_block * page_tokens; kv and minmax have the same heads and
// head_dim, a multiple of 16, at most 256.
// Types: bf16 keys and bounds; minima and maxima ignore the sign of zero (-0 and +0 are equal;
// either may be kept).
// Aliasing: `bounds` overlaps nothing.
// Order: after the keys were written, in stream order. The whole page lies in `kv`, that is,
// kv_begin is a multiple of block_tokens.
// Errors: those of every op (ops/ops.h); num_layers does not divide num_blocks; a block id or a
// table entry outside its range is a failed check on the CPU. Source: Tang et al. 2024, arXiv
// 2406.10774 (Quest), algorithm 1.
void update_key_bounds(Stream& stream, const UpdateKeyBoundsArgs& args);

struct ScorePagesArgs {
  TensorView q;           // bf16 [num_rows, num_q_heads, head_dim], one row per sequence (decode)
  QueryZones zones = {};  // of the rows, at batch.first_pos; absent: `q` for all pages
  AttentionBatch batch;   // row s belongs to sequence s
  KeyBounds bounds;
  TensorView block_ids;  // i32 [num_seqs, max_ids]
  TensorView kv_end;     // i32 [num_seqs]
  TensorView scores;     // f32 [num_seqs, num_kv_heads, max_pages]: pages that exist are written
};

// scores[s, h, p] = max over the query heads of KV head h of
//                   sum over channels d of max(q[d] * min[p, d], q[d] * max[p, d]),
// an upper bound of q.k over the page's keys. With zones q is that of the page's zone: a page lies
// in one chunk, and scores of different zones compare as the scores of attention do.
// Shapes: q [num_seqs, num_q_heads, head_dim], num_q_heads a multiple of num_kv_heads; scores
// [num_seqs, num_kv_heads, max_pages]; zones.chunk_tokens is a multiple of pages_per_block *
// page_tokens.
// Types: bf16 queries and bounds, f32 products, sums and scores.
// Aliasing: `scores` overlaps nothing.
// Order: after update_key_bounds of the pages, in stream order.
// Errors: those of every op (ops/ops.h); more pages than `scores` holds, or a page without bounds,
// is a failed check on the CPU.
// Source: Tang et al. 2024, arXiv 2406.10774 (Quest), algorithm 1.
void score_pages(Stream& stream, const ScorePagesArgs& args);

// Which pages a list takes. Let r be the list's anchor: the position of the sequence's last row, or
// with q_page_tokens the first position of the query page. The list takes
//   everything                                     if r < threshold_tokens
//   pages below sink_pages, pages that hold a token of [r - recent_tokens, r], and all after them
//   the top_pages best of the others by score; equal scores: the lower page; NaN counts as -inf
// and ends with the page of the sequence's last row or of the query page's last position. Ids come
// out ascending. Nothing depends on how a prompt was cut into passes. A sequence with kv_end <= 0
// and a query page that begins at kv_end or later have empty lists.
struct PageRule {
  int32_t sink_pages = 0;
  int32_t recent_tokens = 0;
  int32_t top_pages = 0;
  int32_t threshold_tokens = 0;
};

// How often pages were chosen, for people who watch. Sums wrap.
struct PageReads {
  TensorView counts;     // i32 [num_blocks, pages_per_block]; absent: nothing is counted
  TensorView block_ids;  // i32 [num_seqs, max_ids]: rows of `counts`, as in ScorePagesArgs
};

struct SelectPagesArgs {
  TensorView scores;  // f32 [num_seqs, num_kv_heads, max_pages], or absent: top_pages must be 0
  AttentionBatch batch;
  TensorView kv_end;  // i32 [num_seqs]: the sequence's last row is at kv_end - 1
  PageRule rule;
  PageList pages;  // page_ids and page_count are written. With one list for all heads a page's
                   // score is the sum of its heads' (in ascending order of head).
  PageReads reads;
};

// Writes the list that the rule takes, for every sequence, list head and query page; adds 1 to
// reads.counts of each page that a list takes for its score, at a cost of one atomic addition.
// Shapes: pages.page_ids has room for the largest list, which follows from the rule and the longest
// context; q_page_tokens is 0 where there are scores.
// Types: f32 scores, i32 ids and counts; ids ascend.
// Aliasing: the lists and the counts of reads overlap nothing.
// Order: after score_pages, in stream order. Readers of the lists follow on the same stream, or
// wait for an event of it.
// Errors: a list without room is an asynchronous error that names the list.
void select_pages(Stream& stream, const SelectPagesArgs& args);

}  // namespace sluice
