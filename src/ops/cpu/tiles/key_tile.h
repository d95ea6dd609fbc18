// Keys of a tile as the inner loop of tile scores takes them, and integer shares of softmax mass.
//
// Used by the ops of ops/cpu/tiles. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "device/cpu/cpu_features.h"
#include "ops/attention/attention.h"
#include "ops/cpu/kv_rows.h"
#include "ops/cpu/scalar_math.h"
#include "ops/cpu/thread_scratch.h"
#include "ops/cpu/tiles/kernels.h"
#include "ops/tiles/tile_selection.h"

namespace sluice::cpu {

inline const TileKernels& tile_kernels_of(CpuIsa isa) {
  if (isa >= CpuIsa::kAvx512) return tile_kernels_avx512();
  return isa >= CpuIsa::kAvx2 ? tile_kernels_avx2() : tile_kernels_portable();
}

// A run of keys of one sequence as plain pointers.
struct KeyRunCall {
  KvBlocksView kv;
  const int32_t* kv_begin;
  const int32_t* kv_end;
  const int32_t* block_table;

  // The key, or the value, of a head at a position; perhaps in the room.
  const uint16_t* key(int32_t kv_head, int32_t position, KvRowRoom& room) const {
    return key_row(kv, block_of(position), kv_head, position % kv.shape.block_tokens, room.numbers);
  }
  const uint16_t* value(int32_t kv_head, int32_t position, KvRowRoom& room) const {
    return value_row(kv, block_of(position), kv_head, position % kv.shape.block_tokens,
                     room.numbers);
  }
  int32_t block_of(int32_t position) const {
    return block_table[(position - *kv_begin) / kv.shape.block_tokens];
  }
  int32_t first_tile() const { return *kv_begin / kMaskTileTokens; }
  int32_t num_tiles() const {
    return (*kv_end + kMaskTileTokens - 1) / kMaskTileTokens - first_tile();
  }
};

// Of the args of an op that reads keys. Errors: kUnsupported for keys of another type.
template <typename Args>
KeyRunCall key_run_of(std::string_view op, const Args& args) {
  expect_cpu_kv(op, args.kv.shape);
  return {.kv = args.kv,
          .kv_begin = args.kv_begin.template data<int32_t>(),
          .kv_end = args.kv_end.template data<int32_t>(),
          .block_table = args.block_table.template data<int32_t>()};
}

// Keys of a tile, and scores of some probes with them, in the scratch of the thread.
struct TileScratch {
  float* keys;  // [head_dim][kMaskTileTokens]
  float* sums;  // [kProbesAtOnce][kMaskTileTokens]
};

inline TileScratch tile_scratch(int32_t head_dim) {
  const size_t num_floats = static_cast<size_t>((head_dim + kProbesAtOnce) * kMaskTileTokens);
  auto* keys = reinterpret_cast<float*>(thread_scratch(num_floats * sizeof(float)));
  return {.keys = keys, .sums = keys + int64_t{head_dim} * kMaskTileTokens};
}

// One key as a column of `keys`, f32 [head_dim][num_keys].
inline void put_key(const uint16_t* from, int32_t head_dim, int32_t num_keys, float* to) {
  for (int32_t d = 0; d < head_dim; ++d) to[int64_t{d} * num_keys] = bf16_to_float(from[d]);
}

// The keys of a tile as f32 [head_dim][kMaskTileTokens]; 0 for tokens from kv_end on, which may be
// NaN in memory.
inline void load_tile_keys(const KeyRunCall& run, int32_t kv_head, int32_t kv_tile, float* keys) {
  const int32_t head_dim = run.kv.shape.head_dim;
  std::fill_n(keys, int64_t{head_dim} * kMaskTileTokens, 0.0f);
  const int32_t begin = kv_tile * kMaskTileTokens;
  const int32_t end = std::min(begin + kMaskTileTokens, *run.kv_end);
  KvRowRoom room;
  for (int32_t position = begin; position < end; ++position) {
    put_key(run.key(kv_head, position, room), head_dim, kMaskTileTokens, keys + position - begin);
  }
}

// A true row whose share of mass on single keys is asked for.
struct RowProbe {
  const uint16_t* vector = nullptr;
  int32_t position = 0;  // it sees keys up to here
  float lse = 0.0f;      // finite
  int32_t target = 0;    // free for the caller
};

// Calls fn(probe, scores) for every probe: scores of kMaskTileTokens keys, before the scale.
// `sums` has room for kProbesAtOnce * kMaskTileTokens numbers.
template <typename F>
void for_each_probe(const TileKernels& kernels, std::span<const RowProbe> probes, int32_t head_dim,
                    const float* keys, float* sums, const F& fn) {
  for (size_t first = 0; first < probes.size(); first += kProbesAtOnce) {
    const size_t count = std::min<size_t>(kProbesAtOnce, probes.size() - first);
    const uint16_t* vectors[kProbesAtOnce] = {};
    for (size_t i = 0; i < count; ++i) vectors[i] = probes[first + i].vector;
    kernels.dot_keys(vectors, static_cast<int32_t>(count), head_dim, keys, kMaskTileTokens, sums);
    for (size_t i = 0; i < count; ++i) fn(probes[first + i], sums + i * kMaskTileTokens);
  }
}

// The log-sum-exp of a probe's records, in the order that ops/tiles/tile_selection.h gives; not
// finite where the probe is not usable: NaN and infinity make the sum NaN.
inline float log_sum_exp(const float* records, int32_t count) {
  const float largest = *std::max_element(records, records + count);
  float lanes[kRecordLanes] = {};
  int32_t j = 0;
  for (; j + kRecordLanes <= count; j += kRecordLanes) {
    for (int32_t l = 0; l < kRecordLanes; ++l) lanes[l] += fast_exp(records[j + l] - largest);
  }
  for (; j < count; ++j) lanes[j % kRecordLanes] += fast_exp(records[j] - largest);
  return largest + fast_log(sum_lanes(lanes));
}

// floor(share * unit), between 0 and unit; 0 for NaN, which no comparison lets through.
inline uint32_t to_units(float share, uint32_t unit) {
  if (!(share > 0.0f)) return 0;
  return share >= 1.0f ? unit : static_cast<uint32_t>(share * static_cast<float>(unit));
}

}  // namespace sluice::cpu
