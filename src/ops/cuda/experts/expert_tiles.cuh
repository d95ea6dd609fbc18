// Tiles of pairs sorted by expert, as a kernel finds them: sort.cu wrote where they begin.
//
// Used by sorted_pairs.cuh and coded_tiles.cu. Thread rule: device code.
#pragma once

#include "ops/cuda/common.cuh"

namespace sluice::cuda {

// Places [begin, end), all of one expert.
struct ExpertTile {
  int32_t expert;
  int32_t begin;
  int32_t end;
};

// Tile `index` of `rows` pairs each, of `num_experts` experts. begins and first_tiles: [num_experts
// + 1]. Its expert is the last one whose first tile is not after it; experts without pairs have
// none. REQUIRES: all threads of a warp ask for the same.
__device__ inline ExpertTile expert_tile(const int32_t* begins, const int32_t* first_tiles,
                                         int32_t num_experts, int32_t index, int32_t rows) {
  const int32_t lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  int32_t num_not_after = 0;
#pragma unroll 4
  for (int32_t first = 0; first < num_experts; first += kWarpThreads) {
    const int32_t expert = first + lane;
    const bool is_not_after = expert < num_experts && first_tiles[expert] <= index;
    num_not_after += __popc(__ballot_sync(kFullWarp, is_not_after));
  }
  const int32_t expert = num_not_after - 1;
  const int32_t begin = begins[expert] + (index - first_tiles[expert]) * rows;
  return {.expert = expert, .begin = begin, .end = min(begins[expert + 1], begin + rows)};
}

}  // namespace sluice::cuda
