// The border between the driver of attention and its kernels, one kernel per ISA.
//
// Used by ops/cpu/attention/attention.cc (which cuts a call into items) and the attention/<isa>.cc
// files. Each of those is compiled with flags of its own, so they include only this file,
// <immintrin.h> and code in unnamed namespaces: an inline function compiled for AVX-512 must never
// be the copy that the linker keeps for the rest of the program.
// Thread rule: kernels are stateless; every thread passes its own scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_element.h"

namespace sluice {

inline constexpr int32_t kTileTokens = 16;      // kAttentionTile
inline constexpr int32_t kBitTileTokens = 128;  // kMaskTileTokens
inline constexpr int32_t kRoomTiles = 8;        // keys of a chunk, that a kernel reads in place

// The unit of work of a thread: consecutive rows of one sequence and the query heads of one KV
// head. Strides are in elements. bf16 is passed as its bits.
struct AttentionItem {
  const uint16_t* q = nullptr;  // row 0, first query head of the group
  uint16_t* out = nullptr;      // same place, row stride and head order as q
  float* acc = nullptr;         // same shape as q; null when first and last
  float* max = nullptr;         // row stride state_stride
  float* sum = nullptr;
  int64_t row_stride = 0;
  int64_t state_stride = 0;
  int32_t num_rows = 0;
  int32_t group = 0;  // query heads per KV head
  int32_t head_dim = 0;
  int32_t first_pos = 0;  // position of row 0
  int32_t kv_begin = 0;   // of the run; a multiple of kTileTokens
  int32_t kv_end = 0;     // one past the run's last token; tokens from here on are not read

  const std::byte* blocks = nullptr;  // this KV head's keys in block 0
  size_t block_stride_bytes = 0;
  size_t half_bytes = 0;  // from the keys of a head to its values
  int32_t block_tokens = 0;
  // Of a value, and of a key unless these are in bf16: tile t of a block begins t * kTileTokens of
  // them after its half.
  int32_t token_bytes = 0;
  // Not null: `element` is not bf16, and KV is read into this room: the keys of kRoomTiles tiles,
  // then the values of one.
  uint16_t* room = nullptr;
  // By position; with is_by_entry, the place of page_ids[i] is entry i; null: page_ids[i] is block
  // i.
  const int32_t* block_table = nullptr;

  // At most one of the two; null and null: all tokens.
  const uint32_t* tile_bits = nullptr;  // bit b of word w: KV tile 32 w + b of kMaskTileTokens
  const int32_t* page_ids = nullptr;
  int32_t num_pages = 0;    // 0 or less: the list ended before this call's entries
  int32_t page_tokens = 0;  // multiple of kTileTokens

  // Not null: one past the last token that each row sees, ascending; positions do not count.
  const int32_t* row_limits = nullptr;

  float scale = 1.0f;
  KvElement element = KvElement::kBFloat16;
  bool keys_in_bf16 = false;  // KvBlockShape
  bool is_by_entry = false;
  bool first = true;
  bool last = true;

  // Not null: columns, walked after the tiles of this item into the same state. The same rows; the
  // KV is a copy of the columns side by side, and a column's position is its index in the copy.
  const AttentionItem* columns = nullptr;
};

// REQUIRES of run: num_rows * group <= max(max_query_rows, group); 64-byte aligned scratch.
struct AttentionKernel {
  int32_t max_query_rows = 0;  // query rows (row, head) that share one conversion of the KV
  size_t (*scratch_bytes)(int32_t num_query_rows, int32_t head_dim) = nullptr;
  void (*run)(const AttentionItem& item, std::byte* scratch) = nullptr;
};

// REQUIRES of each: the CPU has its ISA. Bits of AVX2 and AVX-512 agree; scalar and AMX differ.
const AttentionKernel& attention_kernel_scalar();
const AttentionKernel& attention_kernel_avx2();
const AttentionKernel& attention_kernel_avx512();
const AttentionKernel& attention_kernel_amx();

}  // namespace sluice
