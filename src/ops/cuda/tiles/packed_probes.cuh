// Probes of score_columns, packed for the kernel of Hopper: blocks of whole segments as they are in
// shared memory.
//
// The probes of a segment lie side by side, padded to eight: the heads of a KV head's group of its
// first query tile, then those of the next. Used by tiles/score_columns_sm90.cu. Thread rule:
// device code; Packing is for the host.
#pragma once

#include <cmath>
#include <cstdint>

#include <cuda.h>

#include "ops/cuda/tiles/column_product.cuh"
#include "ops/cuda/tiles/columns_call.h"

namespace sluice::cuda::tiles {

inline constexpr int kTileProbes = 64;  // of a product
inline constexpr int kMaxTiles = 8;     // of a block of segments
inline constexpr int kMaxProbes = kMaxTiles * kTileProbes;
inline constexpr int kProbeUnit = 8;  // probes of a segment are padded to it
inline constexpr int kPackThreads = 256;

// The probes of a block of segments as they are in shared memory: kPanels times 64 elements.
template <int kPanels>
struct PackedProbes {
  Panel<kTileProbes> vectors[kMaxTiles][kPanels];
  float lse[kMaxProbes];       // in units of ln 2; infinite where there is no usable probe
  int32_t limits[kMaxProbes];  // first position that a probe does not see
};

// How segments are put into blocks.
struct Packing {
  int32_t segment_probes;      // of a segment, padded
  int32_t segments_per_block;  // as many as fit, at most
  int32_t num_blocks;
  int32_t num_tiles;  // of a block

  Packing(const ColumnsCall& call, int32_t most_segments)
      : segment_probes(padded_probes(call)),
        segments_per_block(most_segments),
        num_blocks((call.num_segments + most_segments - 1) / most_segments) {
    segments_per_block = (call.num_segments + num_blocks - 1) / num_blocks;
    num_tiles = (segments_per_block * segment_probes + kTileProbes - 1) / kTileProbes;
  }
  static int32_t padded_probes(const ColumnsCall& call) {
    const int32_t count = call.tiles_per_segment * call.probes.group;
    return (count + kProbeUnit - 1) / kProbeUnit * kProbeUnit;
  }
};

// The parameters beside ColumnsCall.
template <int kPanels>
struct BlockCall {
  CUtensorMap keys;  // [block][kv_head, K or V][token][element]
  int32_t box_tokens;
  Packing packing;
  PackedProbes<kPanels>* packed;  // [num_kv_heads][blocks of the round]
  int32_t first_block;            // of the round
  int32_t round_blocks;
};

// The segments of a CTA, in query tiles of the window and in segments of the call.
struct BlockSegments {
  int32_t block;
  int32_t first;       // segment
  int32_t count;       // segments that exist
  int32_t begin_tile;  // query tiles, by position
  int32_t end_tile;

  __device__ BlockSegments(const ColumnsCall& call, const Packing& packing, const ProbeRun& run,
                           int32_t block_index)
      : block(block_index), first(block_index * packing.segments_per_block) {
    count = min(packing.segments_per_block, call.num_segments - first);
    const int32_t first_entry = first * call.tiles_per_segment;
    const int32_t end_entry =
        min(first_entry + count * call.tiles_per_segment, call.probes.num_q_tiles);
    const int32_t end_of_rows = (run.end_pos + kMaskTileTokens - 1) / kMaskTileTokens;
    begin_tile = run.first_q_tile + first_entry;
    end_tile = min(run.first_q_tile + end_entry, end_of_rows);
  }
};

// Packs probes, a thread for each 16 bytes. grid: probes of a block of segments, blocks of the
// round, KV heads.
template <int kPanels>
__global__ void __launch_bounds__(kPackThreads)
    pack_probes(const __grid_constant__ ColumnsCall call,
                const __grid_constant__ BlockCall<kPanels> blocks) {
  constexpr int kPieces = kPanels * kStepPieces;
  const auto index = static_cast<int32_t>(blockIdx.x * kPackThreads + threadIdx.x);
  const int32_t probe = index / kPieces;
  const int32_t piece = index % kPieces;
  const auto kv_head = static_cast<int32_t>(blockIdx.z);
  const Packing& packing = blocks.packing;
  if (probe >= packing.num_tiles * kTileProbes) return;
  const ProbeRun run(call.probes);
  const BlockSegments own(call, packing, run,
                          blocks.first_block + static_cast<int32_t>(blockIdx.y));
  const int32_t segment = probe / packing.segment_probes;
  const int32_t row = probe % packing.segment_probes;
  const int32_t group = call.probes.group;
  const int32_t entry = (own.first + segment) * call.tiles_per_segment + row / group;
  ProbePlace place;
  if (segment < own.count && row < call.tiles_per_segment * group &&
      entry < call.probes.num_q_tiles) {
    place = place_of(call.probes, run, kv_head * group + row % group, entry,
                     column_probe(run.first_q_tile + entry, call.probes.rows_per_tile));
  }
  auto& to = blocks.packed[kv_head * blocks.round_blocks + static_cast<int32_t>(blockIdx.y)];
  Bf16x8 eight = {};
  if (place.limit > 0) {
    eight = *reinterpret_cast<const Bf16x8*>(place.vector + piece * kStepElements / kStepPieces);
  }
  auto& panel = to.vectors[probe / kTileProbes][piece / kStepPieces];
  *reinterpret_cast<Bf16x8*>(piece_of(panel, probe % kTileProbes, piece % kStepPieces)) = eight;
  if (piece != 0) return;
  to.lse[probe] = place.limit > 0 ? __fmul_rn(place.lse, kLog2E) : INFINITY;
  to.limits[probe] = place.limit;
}

}  // namespace sluice::cuda::tiles
