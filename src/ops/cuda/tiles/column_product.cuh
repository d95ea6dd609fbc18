// Scores of probe rows with 128 keys that stay in shared memory, for the ops of columns and lines.
//
// 128 rows at a time by mma.sync (score_product.cuh), a warp 32 of them. Rows come in steps of 64
// elements; nothing overlaps with their copies but other blocks. A score is a function of its row
// and its key alone. Used by tiles/{score,subtract}_columns.cu and tiles/score_lines.cu. Thread
// rule: device code; all threads of a block call each function.
#pragma once

#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/shared_copy.cuh"
#include "ops/cuda/tiles/column_product.h"
#include "ops/cuda/tiles/score_product.cuh"

namespace sluice::cuda::tiles {

inline constexpr int kProductThreads = kKeysAtOnce;  // a thread for each key, and for each row
inline constexpr int kProductRows = 128;
inline constexpr int kProductWarps = kProductThreads / kWarpThreads;
inline constexpr int kThreadKeys = 32;  // of which a thread has scores
static_assert(kProductRows == kProductWarps * kWarpRows && kProductThreads == kProductRows);

// A probe row, and what it sees.
struct ProbePlace {
  const uint16_t* vector = nullptr;
  float lse = 0.0f;
  int32_t limit = 0;  // first position that it does not see; 0: it does not exist, or is not usable
};

// Dynamic shared memory; the panels of the keys follow.
struct alignas(128) ProductShared {
  Panel<kProductRows> rows;           // of a step
  const uint16_t* keys[kKeysAtOnce];  // null: 0
  ProbePlace probes[kProductRows];
  union {  // partial sums of warps
    float shares[kProductWarps][kKeysAtOnce];
    uint32_t counts[kProductWarps][kKeysAtOnce];
  };
  int32_t positions[kKeysAtOnce];

  __device__ Panel<kKeysAtOnce>& key_panel(int32_t i) {
    return reinterpret_cast<Panel<kKeysAtOnce>*>(this + 1)[i];
  }
};

inline size_t product_bytes(int32_t head_dim) {
  const int32_t num_panels = (head_dim + kStepElements - 1) / kStepElements;
  return sizeof(ProductShared) + static_cast<size_t>(num_panels) * sizeof(Panel<kKeysAtOnce>);
}

// What only the device knows of the rows.
struct ProbeRun {
  int32_t first_q_tile;  // of the window
  int32_t end_pos;       // one past the last row

  __device__ explicit ProbeRun(const ProbeCall& call)
      : first_q_tile((*call.first_pos + call.first_row) / kMaskTileTokens),
        end_pos(*call.first_pos + call.row_begin[1] - call.row_begin[0]) {}
};

// Probe `index` of query tile `entry` of the window.
__device__ inline ProbePlace place_of(const ProbeCall& call, const ProbeRun& run, int32_t q_head,
                                      int32_t entry, int32_t index) {
  const int32_t q_tile = run.first_q_tile + entry;
  if (q_tile * kMaskTileTokens >= run.end_pos) return {};
  const int64_t probe =
      static_cast<int64_t>(q_head) * call.num_probes + entry * call.rows_per_tile + index;
  const float lse = call.lse[probe];
  if (!isfinite(lse)) return {};
  const int32_t row = probe_row(q_tile, index, call.rows_per_tile);
  return {call.vectors + probe * call.head_dim, lse, min(row, run.end_pos - 1) + 1};
}

// Begins to copy a step of vectors; 0 for those that at(vector) says are not there.
template <int kVectors, typename At>
__device__ __forceinline__ void copy_step(const ProbeCall& call, int32_t step, const At& at,
                                          Panel<kVectors>& to) {
  const int piece = threadIdx.x % kStepPieces;
  const int32_t element = step * kStepElements + piece * 8;
#pragma unroll 4
  for (int vector = threadIdx.x / kStepPieces; vector < kVectors;
       vector += kProductThreads / kStepPieces) {
    const uint16_t* from = at(vector);
    const bool is_there = from != nullptr && element < call.head_dim;
    copy_16(piece_of(to, vector, piece), is_there ? from + element : call.vectors, is_there);
  }
}

// Takes `key` as the thread's key, null for none, and begins to copy all keys. Waits until no
// thread reads the keys before them.
__device__ __forceinline__ void load_keys(const ProbeCall& call, const uint16_t* key,
                                          ProductShared& shared) {
  __syncthreads();
  shared.keys[threadIdx.x] = key;
  __syncthreads();
  const int32_t num_steps = (call.head_dim + kStepElements - 1) / kStepElements;
  for (int32_t step = 0; step < num_steps; ++step) {
    copy_step(
        call, step, [&](int vector) { return shared.keys[vector]; }, shared.key_panel(step));
  }
}

// s += scores, before the scale, of shared.probes, each of which its own thread has written. Which
// of them a thread gets: score_product.cuh.
__device__ __forceinline__ void multiply_probes(const ProbeCall& call, ProductShared& shared,
                                                float (&s)[2][64]) {
  const int32_t num_steps = (call.head_dim + kStepElements - 1) / kStepElements;
  for (int32_t step = 0; step < num_steps; ++step) {
    __syncthreads();  // the probes are there, and no thread reads the rows of the step before
    copy_step(
        call, step, [&](int vector) { return shared.probes[vector].vector; }, shared.rows);
    wait_for_copies();
    __syncthreads();
    WarpProduct::multiply(shared.rows, shared.key_panel(step), step > 0, s);
  }
}

// The place of one of the thread's rows: half r of the 16 rows m of its warp.
__device__ __forceinline__ const ProbePlace& place_of_row(const ProductShared& shared, int m,
                                                          int r) {
  const int lane = threadIdx.x % kWarpThreads;
  return shared.probes[threadIdx.x / kWarpThreads * kWarpRows + m * 16 + r * 8 + lane / 4];
}

// The key of the thread's scores s[.][4 j + 2 r + e], i = 2 j + e.
__device__ __forceinline__ int key_of_score(int i) {
  return i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
}

// exp(score - lse) of a scaled score: a probe's share of mass on a key.
__device__ __forceinline__ float share_of(float score, float scale, float lse) {
  return exp2_approx(__fmul_rn(__fmaf_rn(score, scale, -lse), kLog2E));
}

// Sums end at kMaxColumnScore, of which two fit 32 bits.
__device__ __forceinline__ uint32_t add_up(uint32_t a, uint32_t b) {
  return min(a + b, kMaxColumnScore);
}

// Rounded down; 0 for NaN.
__device__ __forceinline__ uint32_t to_units(float share) {
  if (!(share > 0.0f)) return 0;
  return min(__float2uint_rz(share * static_cast<float>(kColumnOne)), kColumnOne);
}

// The sums of each key over the lanes that share it, in all of them.
__device__ __forceinline__ void add_up_lanes(uint32_t (&sums)[kThreadKeys]) {
#pragma unroll
  for (int i = 0; i < kThreadKeys; ++i) {
#pragma unroll
    for (int step = 4; step < kWarpThreads; step *= 2) {
      sums[i] = add_up(sums[i], __shfl_xor_sync(kFullWarp, sums[i], step));
    }
  }
}

}  // namespace sluice::cuda::tiles
