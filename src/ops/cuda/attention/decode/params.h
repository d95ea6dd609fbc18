// The parameters of the decode attention kernels: AttentionArgs as plain pointers and sizes.
//
// Filled by attention/decode/decode.cc, read by attention/decode/*.cu. Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/cuda/kv_codec.h"

namespace sluice::cuda {

// Where a carried state lies; null acc: nowhere.
struct DecodeState {
  float* acc = nullptr;  // [num_rows][num_q_heads][head_dim]
  float* max = nullptr;  // [num_rows][num_q_heads]
  float* sum = nullptr;
  bool is_carry = false;  // indexed by the sequence's place in the round instead of its row
};

// One round of a call: some of its sequences, and of each a range of windows. A window is
// `window_tokens` tokens at a multiple of them from kv_begin; window w of the round is window
// first_window + w of the run.
struct DecodeParams {
  const uint16_t* q = nullptr;  // bf16 [num_rows][num_q_heads][head_dim]
  uint16_t* out = nullptr;      // the same shape; null: the state is written instead
  // Queries of keys in earlier chunks (QueryZones), the same shape.
  const uint16_t* q_before = nullptr;
  const uint16_t* q_far = nullptr;
  int32_t chunk_tokens = 0;  // 0: q for all keys
  DecodeState from;          // the state to start from; null acc: the empty state
  DecodeState to;
  bool zero_is_empty = true;  // start from the empty state where the run begins at token 0, too

  const int32_t* row_begin = nullptr;    // [seqs + 1], of all sequences of the call
  const int32_t* first_pos = nullptr;    // [seqs]
  const int32_t* kv_begin = nullptr;     // [seqs]
  const int32_t* kv_end = nullptr;       // [seqs]
  const int32_t* block_table = nullptr;  // [seqs][max_blocks]
  const std::byte* kv_base = nullptr;
  int64_t kv_stride_bytes = 0;
  int32_t max_blocks = 0;  // width of the block table
  int32_t block_tokens = 0;

  const int32_t* page_ids = nullptr;    // [seqs][num_list_heads][max_pages]; null: every token
  const int32_t* page_count = nullptr;  // [seqs][num_list_heads]
  int32_t num_list_heads = 0;           // 1 or num_kv_heads
  int32_t max_pages = 0;                // width of a list
  int32_t page_tokens = 0;
  bool gathered = false;
  int32_t first_entry = 0;
  int32_t num_entries = 0;
  const int32_t* page_places = nullptr;  // [seqs][num_kv_heads][max_places]: block of a gathered
                                         // page; null: they lie side by side
  int32_t max_places = 0;

  // The window inside which a gathered list is cut, as the registers of its warps: as the previous
  // part left it, and as this part leaves it.
  float* resumed_windows = nullptr;
  float* open_windows = nullptr;

  // Counters of blocks, [seq of the round][q head]; zero between kernels.
  uint32_t* num_arrived = nullptr;

  // If only windows that a list shows are computed: their number, [seq of the round][KV head];
  // num_windows is an upper bound. Records of a list lie side by side. Null: all windows.
  int32_t* num_found = nullptr;

  // Results of the windows, [seq of the round][q head][window][record]: acc, and (max, sum). Two
  // records are the halves of a window, which different blocks compute when there are few windows.
  // A sum of 0 with a maximum of -inf says that nothing was visible; acc is not written then.
  float* partial_acc = nullptr;
  float2* partial_max_sum = nullptr;
  int32_t records = 1;

  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;  // query heads per KV head
  int32_t head_dim = 0;
  int32_t window_tokens = 0;  // 1 << window_shift, since it divides 256
  int32_t window_shift = 0;
  int32_t windows_per_block = 0;
  // The round: sequences [first_seq, first_seq + num_seqs), and of each run windows [first_window,
  // first_window + num_windows), those that exist.
  int32_t first_seq = 0;
  int32_t num_seqs = 0;
  int32_t first_window = 0;
  int32_t num_windows = 0;
  float scale = 0.0f;
  KvCodes codes = KvCodes::kNone;
  KvCodec codec;  // of them
};

}  // namespace sluice::cuda
