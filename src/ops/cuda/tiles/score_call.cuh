// Where probes, tiles and keys of a call of score_tiles are: what its kernels share.
//
// Used by tiles/probe_vectors.cu and tiles/score_kernel.cuh. Thread rule: device code.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/tiles/key_run.cuh"
#include "ops/cuda/tiles/score_call.h"

namespace sluice::cuda {

// What only the device knows of a call.
struct ScoreRun {
  int32_t first_pos;
  int32_t end_pos;       // one past the last row
  int32_t first_q_tile;  // of the window
  int32_t kv_begin;
  int32_t kv_end;  // as far as there are records

  __device__ explicit ScoreRun(const ScoreCall& call)
      : first_pos(*call.first_pos),
        end_pos(first_pos + call.row_begin[1] - call.row_begin[0]),
        first_q_tile((first_pos + call.first_row) / kMaskTileTokens),
        kv_begin(*call.kv_begin),
        kv_end(min(*call.kv_end, call.num_kv_tiles * kMaskTileTokens)) {}
};

// The positions [begin, end) that a probe is made of, and the first position that it does not see.
// Empty if the probe does not exist.
struct ProbeRows {
  int32_t begin;
  int32_t end;
  int32_t limit;

  __device__ bool exists() const { return begin < end; }
};

// The line row of a probe, or all line rows of a segment as one pool.
__device__ inline ProbeRows line_rows_of(const ScoreCall& call, const ScoreRun& run,
                                         int32_t probe) {
  const int32_t begin =
      run.first_q_tile * kMaskTileTokens + probe / call.per_tile * call.segment_tokens;
  const int32_t end = min(begin + call.segment_tokens, run.end_pos);
  const int32_t first = end - call.line_rows;
  if (call.probes.kind == TileProbeKind::kPooled) return {max(begin, first), end, end};
  const int32_t row = first + probe % call.per_tile;
  if (row < begin) return {0, 0, 0};
  return {row, row + 1, row + 1};
}

__device__ inline ProbeRows rows_of(const ScoreCall& call, const ScoreRun& run, int32_t probe) {
  if (call.segment_tokens > 0) return line_rows_of(call, run, probe);
  const int32_t q_tile = run.first_q_tile + probe / call.per_tile;
  const int32_t index = probe % call.per_tile;
  if (q_tile * kMaskTileTokens >= run.end_pos) return {0, 0, 0};
  if (call.probes.are_true_rows()) {
    const int32_t row = min(probe_row(q_tile, index, call.per_tile), run.end_pos - 1);
    return {row, row + 1, row + 1};
  }
  const int32_t tokens = kMaskTileTokens / call.per_tile;
  const int32_t begin = q_tile * kMaskTileTokens + index * tokens;
  const int32_t end = min(begin + tokens, run.end_pos);
  // A cell sees whole cells up to its own; a pool sees tokens up to its last row.
  return {begin, end, call.probes.kind == TileProbeKind::kAntidiagonal ? begin + tokens : end};
}

// Probes from `count` on do not exist, nor do the first ones of a segment with few rows.
__device__ inline int32_t num_existing_probes(const ScoreCall& call, const ScoreRun& run) {
  const int32_t num_rows = max(run.end_pos - run.first_q_tile * kMaskTileTokens, 0);
  if (call.segment_tokens > 0) {
    const int32_t num_segments = (num_rows + call.segment_tokens - 1) / call.segment_tokens;
    return min(num_segments * call.per_tile, call.num_probes);
  }
  // All probe rows of a tile that has a row exist, clipped to the last row.
  const int32_t tokens = kMaskTileTokens / call.per_tile;
  const int32_t count = call.probes.are_true_rows()
                            ? (num_rows + kMaskTileTokens - 1) / kMaskTileTokens * call.per_tile
                            : (num_rows + tokens - 1) / tokens;
  return min(count, call.num_probes);
}

// The first probe of a query tile or segment that may see token `position`.
__device__ inline int32_t first_probe_of(const ScoreCall& call, const ScoreRun& run,
                                         int32_t position) {
  const int32_t hidden = max(position - run.first_q_tile * kMaskTileTokens, 0);
  return hidden / (call.segment_tokens > 0 ? call.segment_tokens : kMaskTileTokens) * call.per_tile;
}

// Whether the probes of query tile `entry` of the window score a KV tile. REQUIRES: call.visits.
__device__ inline bool visits(const ScoreCall& call, int32_t kv_head, int32_t entry,
                              int32_t kv_tile) {
  const uint32_t* words =
      call.visits + kv_head * call.visit_list_words + static_cast<int64_t>(entry) * call.num_words;
  return (words[kv_tile / 32] >> (kv_tile % 32) & 1u) != 0;
}

// The key of token `position` of the run.
__device__ inline const uint16_t* key_at(const ScoreCall& call, const ScoreRun& run,
                                         int32_t kv_head, int32_t position) {
  return key_of_run(call, run.kv_begin, kv_head, position);
}

// The mean or the channel-wise maximum of eight channels of `count` vectors, at(0) to
// at(count - 1), added in ascending order.
template <typename At>
__device__ __forceinline__ Bf16x8 pool_eight(bool maxima, int32_t count, const At& at) {
  constexpr int32_t kLoads = 8;  // in flight
  float result[8];
  unpack(*reinterpret_cast<const Bf16x8*>(at(0)), result);
  for (int32_t first = 1; first < count; first += kLoads) {
    Bf16x8 loaded[kLoads];
#pragma unroll
    for (int32_t i = 0; i < kLoads; ++i) {
      if (first + i < count) loaded[i] = *reinterpret_cast<const Bf16x8*>(at(first + i));
    }
#pragma unroll
    for (int32_t i = 0; i < kLoads; ++i) {
      if (first + i >= count) continue;
      float next[8];
      unpack(loaded[i], next);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        result[e] = maxima ? (result[e] < next[e] ? next[e] : result[e]) : result[e] + next[e];
      }
    }
  }
  if (!maxima) {
#pragma unroll
    for (int e = 0; e < 8; ++e) result[e] = __fdiv_rn(result[e], static_cast<float>(count));
  }
  return pack(result);
}

}  // namespace sluice::cuda
