// What the decode attention kernels receive: pointers and sizes, as plain values.
//
// Filled by attention/decode/decode.cc, read by attention_decode*.cu. Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

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
  DecodeState from;             // the state to start from; null acc: the empty state
  DecodeState to;
  bool zero_is_empty = true;  // start from the empty state where the run begins at token 0, too

  const int32_t* row_begin = nullptr;
  const int32_t* first_pos = nullptr;
  const int32_t* kv_begin = nullptr;
  const int32_t* kv_end = nullptr;
  const int32_t* block_table = nullptr;
  const std::byte* kv_base = nullptr;
  int64_t kv_stride_bytes = 0;
  int32_t max_blocks = 0;  // width of the block table
  int32_t block_tokens = 0;

  const int32_t* page_ids = nullptr;  // null: every token
  const int32_t* page_count = nullptr;
  int32_t num_list_heads = 0;  // 1 or num_kv_heads
  int32_t max_pages = 0;       // width of a list
  int32_t page_tokens = 0;
  bool gathered = false;
  int32_t first_entry = 0;
  int32_t num_entries = 0;

  // The window that a list's cut goes through, as registers of its warps: where the previous part
  // of a gathered list left it, and where this one does.
  float* resumed_windows = nullptr;
  float* open_windows = nullptr;

  // Zeros between kernels: [seq of the round][q head].
  uint32_t* num_arrived = nullptr;

  // Where only windows that a list shows are computed: how many, [seq of the round][KV head];
  // num_windows is the most that it can be. Those of a list lie side by side. Null: all windows.
  int32_t* num_found = nullptr;

  // What the windows came to, [seq of the round][q head][window][record]: acc, then (max, sum). Two
  // records are the halves of a window, computed by different blocks where there are few. A sum
  // of 0 with a maximum of -inf says that nothing was visible; acc is not written then.
  float* partial_acc = nullptr;
  float2* partial_max_sum = nullptr;
  int32_t records = 1;

  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  int32_t head_dim = 0;
  int32_t window_tokens = 0;  // 1 << window_shift, since it divides 256
  int32_t window_shift = 0;
  int32_t windows_per_block = 0;
  int32_t first_seq = 0;
  int32_t num_seqs = 0;
  int32_t first_window = 0;
  int32_t num_windows = 0;
  float scale = 0.0f;
};

}  // namespace sluice::cuda
