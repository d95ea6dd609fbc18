// One KV tile in a consumer warpgroup of the Hopper prefill kernels: scores, softmax and P V.
//
// Used by attention/prefill/sm90.cuh and sm90_lists.cuh, which decide the tiles and their order:
// one first_tile, any number of next_tile, then last_values. Each tile's P V is issued one tile
// later, so that the tensor cores compute it during the next softmax. Thread rule: device code; all
// 128 threads of the warpgroup call these together.
#pragma once

#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/attention/prefill/params.h"
#include "ops/cuda/attention/prefill/sm90_pipeline.cuh"

namespace sluice::cuda::sm90 {

// Begins to copy the warpgroup's 64 rows of q to shared memory, swizzled as by the copy engine;
// rows after the last are 0. Not with the copy engine: packed rows of a tile are not a box of q
// when the tile begins or ends inside a group. With zones they are those of the keys of the chunk
// that begins at `chunk_begin`, and rows may lie in several chunks. `q`: a pointer or an address.
template <typename C, typename Shared>
__device__ __forceinline__ void copy_queries(const PrefillParams& p, const PrefillTile& tile,
                                             int first_row, int thread, Shared q,
                                             int chunk_begin = 0) {
  constexpr int kChunks = C::kHeadDim / 8;  // of 16 bytes
  constexpr int kRowsAtOnce = 128 / kChunks;
  const int chunk = thread % kChunks;
#pragma unroll
  for (int i = 0; i < C::kGroupRows / kRowsAtOnce; ++i) {
    const int row = thread / kChunks + i * kRowsAtOnce;
    const int64_t head_row = head_row_of(p, tile, first_row + row);
    const uint16_t* queries = p.q;
    if constexpr (C::kZones) queries = queries_of_row(p, tile, first_row + row, chunk_begin);
    const uint16_t* source = queries + max(head_row, int64_t{0}) * C::kHeadDim + chunk * 8;
    copy_16(q + chunk / 8 * C::kQueryPanelBytes + row * kSwizzleRowBytes +
                ((chunk % 8) ^ (row % 8)) * 16,
            source, head_row >= 0);
  }
}

// Issues s = q k^T of one tile; s is valid after a wait.
template <typename C>
__device__ __forceinline__ void issue_scores(uint32_t q, uint32_t k,
                                             float (&s)[C::kTileTokens / 2]) {
  pin_registers(s);
  wgmma_fence();
  const uint64_t q_matrix = matrix_descriptor(q, 16, kSwizzleUnitBytes);
  const uint64_t k_matrix = matrix_descriptor(k, 16, kSwizzleUnitBytes);
#pragma unroll
  for (int step = 0; step < C::kHeadDim / 16; ++step) {
    const int panel = step / 4;
    const int in_row = step % 4 * 32;
    wgmma_scores(s, advanced(q_matrix, panel * C::kQueryPanelBytes + in_row),
                 advanced(k_matrix, panel * C::kPanelBytes + in_row), step > 0);
  }
  wgmma_commit();
}

// Issues o += weights v of one tile. V lies as [token][channel], the transposed form.
template <typename C>
__device__ __forceinline__ void issue_values(uint32_t (&weights)[C::kTileTokens / 4], uint32_t v,
                                             float (&o)[C::kHeadDim / 2]) {
  pin_registers(o);
  pin_registers(weights);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < C::kTileTokens / 16; ++step) {
    wgmma_values(
        o, weights + 4 * step,
        matrix_descriptor(v + step * 2 * kSwizzleUnitBytes, C::kPanelBytes, kSwizzleUnitBytes));
  }
  wgmma_commit();
}

// Writes zeros over the values of tokens from num_tokens on: their weight is 0, but 0 * NaN is NaN.
// Both warpgroups may clear the same tile: they write the same zeros.
template <typename C>
__device__ __forceinline__ void clear_values(std::byte* v, int num_tokens, int thread) {
  for (int token = num_tokens; token < C::kTileTokens; ++token) {
    for (int chunk = thread; chunk < C::kHeadDim / 8; chunk += 128) {
      // A swizzle permutes chunks inside a row: every chunk of the row becomes 0 anyway.
      std::byte* row = v + chunk / 8 * C::kPanelBytes + token * kSwizzleRowBytes;
      *reinterpret_cast<uint4*>(row + chunk % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
  }
  shared_write_fence();
}

// The state of one consumer warpgroup at one tile of rows, the same in all its threads but
// `thread`.
template <typename C>
struct Consumer {
  const PrefillParams& p;
  Shared<C>& shared;
  int index;   // which of the two
  int thread;  // 0 .. 127
  uint32_t q;  // its rows of q
  int kv_begin;
  int num_kv_tiles;  // that the CTA brings
  int step;          // which of the CTA's KV tiles is the first of them

  __device__ Stage<C> stage(int i) const { return Stage<C>(step + i); }
  __device__ void release(uint64_t& empty) const {
    if (thread % 32 == 0) barrier_arrive(shared_address(&empty));
  }
  __device__ void wait(uint64_t& full, const Stage<C>& at) const {
    barrier_wait(shared_address(&full), at.parity);
  }
  // The warpgroups take turns at issuing products, so that the softmax of one overlaps with the
  // products of the other. The second gives the first its first turn (in `attend`) and none after
  // the last.
  __device__ void wait_for_turn() const { named_barrier_sync(kTurnBarrier + index, 256); }
  __device__ void give_turn() const { named_barrier_arrive(kTurnBarrier + (index ^ 1), 256); }
  __device__ void pass_turn(int i) const {
    if (index == 0 || i + 1 < num_kv_tiles) give_turn();
  }
  // The first of the warp's 16 rows.
  __device__ int first_row_of_warp(const PrefillTile& tile) const {
    return tile.first_row + index * C::kGroupRows + thread / 32 * 16;
  }
  // A barrier of the four warps.
  __device__ void meet() const { named_barrier_sync(kGroupBarrier + index, 128); }
};

// Tile 0: scores and their softmax; there is no earlier P V to overlap with. `mask(i, s)` sets the
// scores of tile i that a row may not see to -inf.
template <typename C, typename Mask>
__device__ __forceinline__ void first_tile(const Consumer<C>& self, const Mask& mask, RowPair& rows,
                                           float (&o)[C::kHeadDim / 2],
                                           uint32_t (&weights)[C::kTileTokens / 4]) {
  float s[C::kTileTokens / 2];
  float alpha[2];
  const Stage<C> stage = self.stage(0);
  self.wait(self.shared.k_full[stage.index], stage);
  issue_scores<C>(self.q, shared_address(self.shared.k[stage.index]), s);
  wgmma_wait<0>();
  pin_registers(s);
  self.release(self.shared.k_empty[stage.index]);
  mask(0, s);
  softmax_tile<C::kTileTokens>(self.p.scale, rows, s, alpha);
  scale_accumulator<C::kHeadDim>(alpha, o);
  pack_weights<C::kTileTokens>(s, weights);
}

// Tile i >= 1: its scores and softmax, during which o += P V of tile i - 1 is computed. The scores
// are issued first: wgmma_wait<1> then waits for them alone.
template <typename C, typename Mask>
__device__ __forceinline__ void next_tile(const Consumer<C>& self, int i, const Mask& mask,
                                          RowPair& rows, float (&o)[C::kHeadDim / 2],
                                          uint32_t (&weights)[C::kTileTokens / 4]) {
  float s[C::kTileTokens / 2];
  float alpha[2];
  const Stage<C> stage = self.stage(i);
  const Stage<C> before = self.stage(i - 1);
  self.wait(self.shared.k_full[stage.index], stage);
  self.wait_for_turn();
  issue_scores<C>(self.q, shared_address(self.shared.k[stage.index]), s);
  self.wait(self.shared.v_full[before.index], before);
  issue_values<C>(weights, shared_address(self.shared.v[before.index]), o);
  self.pass_turn(i);

  wgmma_wait<1>();
  pin_registers(s);
  self.release(self.shared.k_empty[stage.index]);
  mask(i, s);
  softmax_tile<C::kTileTokens>(self.p.scale, rows, s, alpha);
  wgmma_wait<0>();
  pin_registers(o);
  pin_registers(weights);
  self.release(self.shared.v_empty[before.index]);
  scale_accumulator<C::kHeadDim>(alpha, o);
  pack_weights<C::kTileTokens>(s, weights);
}

// The last product P V, of tile i. Only the last tile can be cut by kv_end, so values are cleared
// here alone.
template <typename C>
__device__ __forceinline__ void last_values(const Consumer<C>& self, int i, int num_tokens,
                                            float (&o)[C::kHeadDim / 2],
                                            uint32_t (&weights)[C::kTileTokens / 4]) {
  const Stage<C> stage = self.stage(i);
  self.wait(self.shared.v_full[stage.index], stage);
  if (num_tokens < C::kTileTokens) {
    clear_values<C>(self.shared.v[stage.index], num_tokens, self.thread);
    self.meet();
  }
  issue_values<C>(weights, shared_address(self.shared.v[stage.index]), o);
  wgmma_wait<0>();
  pin_registers(o);
  pin_registers(weights);
  self.release(self.shared.v_empty[stage.index]);
}

// Releases a tile that only the other warpgroup needs, and passes its turn on.
template <typename C>
__device__ __forceinline__ void skip_tile(const Consumer<C>& self, int i) {
  const Stage<C> stage = self.stage(i);
  if (i > 0) {
    self.wait_for_turn();
    self.pass_turn(i);
  }
  self.wait(self.shared.k_full[stage.index], stage);
  self.release(self.shared.k_empty[stage.index]);
  self.wait(self.shared.v_full[stage.index], stage);
  self.release(self.shared.v_empty[stage.index]);
}

}  // namespace sluice::cuda::sm90
