// The parameters of the prefill attention kernels: AttentionArgs as plain pointers and sizes.
//
// Filled by attention/prefill/prefill.cc, read by attention/prefill/{sm80,sm90}*.cuh. Thread rule:
// values.
#pragma once

#include <cstddef>
#include <cstdint>

#include <vector_types.h>

#include "ops/cuda/kv_codec.h"

namespace sluice::cuda {

// Rows are packed: packed row r of a KV head is query row r / group and query head
// kv_head * group + r % group, so that all heads of a group share the K and V that a block loads.
struct PrefillParams {
  const uint16_t* q = nullptr;  // bf16 [num_rows][num_q_heads][head_dim]
  // Queries of keys in earlier chunks (QueryZones), the same shape.
  const uint16_t* q_before = nullptr;
  const uint16_t* q_far = nullptr;
  int32_t chunk_tokens = 0;  // 0: q for all keys
  uint16_t* out = nullptr;   // bf16, the same shape; may be q
  float* acc = nullptr;      // f32 [num_rows][num_q_heads][head_dim]
  float* max = nullptr;      // f32 [num_rows][num_q_heads]
  float* sum = nullptr;
  const int32_t* row_begin = nullptr;
  const int32_t* first_pos = nullptr;
  const int32_t* kv_begin = nullptr;
  const int32_t* kv_end = nullptr;
  const int32_t* block_table = nullptr;
  const std::byte* kv_base = nullptr;
  int64_t kv_stride_bytes = 0;
  int32_t num_seqs = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  int32_t max_blocks = 0;      // width of the block table
  int32_t num_q_tiles = 0;     // tiles of rows per KV head, of all sequences, at most
  int32_t num_tiles = 0;       // in all
  int32_t heads_together = 0;  // KV heads whose tiles are interleaved in launch order
  int32_t tiles_per_cta = 1;   // neighbours in launch order that one CTA computes in turn
  float scale = 0.0f;
  bool first = true;
  bool last = true;
  bool is_coded = false;  // keys and values in codes of a byte, else in bf16
  KvCodec codec;          // of them

  // Split tiles, on Hopper: the last `num_split` in launch order are each computed in two parts by
  // two CTAs, one at the beginning of the launch and one at its end (sm90_items.cuh).
  int32_t num_split = 0;
  float split_step = 0.0f;        // second part of split tile i: (num_split - i) * split_step of
                                  // its tokens
  float4* handed_over = nullptr;  // registers after first parts: [split tile][consumer][...]
  uint32_t* is_handed = nullptr;  // flags [split tile][consumer]; zero between kernels
  uint32_t* num_begun = nullptr;  // counts the CTAs that have begun; zero between kernels
};

// The page lists of a call, for the kernels that take them (ops/attention/attention.h).
struct PrefillLists {
  const int32_t* page_ids = nullptr;
  const int32_t* page_count = nullptr;
  int32_t num_list_heads = 0;  // KV heads, or 1 when they share a list
  int32_t num_q_pages = 0;
  int32_t max_pages = 0;  // width of a list
  int32_t page_tokens = 0;
  int32_t q_page_tokens = 0;  // 0: one list for all rows of a sequence
};

// The tile mask of a call, likewise.
struct PrefillMask {
  const uint32_t* bits = nullptr;  // [num_seqs][num_list_heads][num_q_tiles][num_words]
  int32_t num_list_heads = 0;      // KV heads, or 1 when they share the bits
  int32_t num_q_tiles = 0;
  int32_t num_words = 0;
  int32_t first_q_tile = 0;
};

// The columns beside the mask of a call of one sequence.
struct PrefillColumns {
  const int32_t* positions = nullptr;  // [num_list_heads][num_segments][max_columns]
  const int32_t* count = nullptr;      // [num_list_heads][num_segments]
  const uint16_t* kv = nullptr;  // bf16 [num_segments][num_kv_heads][2][max_columns][head_dim]
  int32_t num_kv_heads = 0;      // of kv, also where a call has some of them
  int32_t num_segments = 0;
  int32_t max_columns = 0;
  int32_t segment_tokens = 0;
  int32_t first_segment = 0;
  int32_t max_visits = 0;  // of a query tile: its tiles of kMaskTileTokens columns, and two

  // Written by find_columns for each query tile and list head of the mask: the tiles of columns
  // that it visits, and a bit for each column that some row of it keeps. With zones of keys a tile
  // is visited once for each zone of its columns, so that there are up to two visits more.
  uint4* kept = nullptr;         // [num_list_heads][num_q_tiles][max_visits]
  int32_t* tiles = nullptr;      // the same shape: indices of tiles, ascending
  int32_t* num_tiles = nullptr;  // [num_list_heads][num_q_tiles]
  // [num_list_heads][num_q_tiles][2]: which visits are the first of the chunk before the rows' own,
  // and of their own.
  int32_t* zone_begins = nullptr;
};

// What a call selects: lists, a mask, or everything. They live on the host during the launch.
struct PrefillSelection {
  const PrefillLists* lists = nullptr;
  const PrefillMask* mask = nullptr;
  const PrefillColumns* columns = nullptr;  // beside a mask

  bool is_everything() const { return lists == nullptr && mask == nullptr; }
};

}  // namespace sluice::cuda
