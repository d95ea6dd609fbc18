// The parts of a mixture of experts on CUDA.
//
// experts.cc chooses: few pairs of row and slot read their expert's weights each for itself; many
// are sorted by expert, and tiles of them share the weights. Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/cuda/matmul/quantize_rows.h"
#include "ops/experts/experts.h"

namespace sluice {

class CudaStream;

namespace cuda {

// Sorted pairs of one expert that a CTA multiplies at a time on Hopper. Where experts have few, as
// in decode of a batch, most of a larger tile would be multiplied in vain.
inline constexpr int32_t kExpertTileRows = 128;
inline constexpr int32_t kFewTileRows = 32;

// Plain pointers and sizes of ExpertMlpArgs.
struct ExpertCall {
  const uint16_t* x = nullptr;         // [num_rows][hidden]
  const int32_t* experts = nullptr;    // [num_rows][num_slots]
  const float* shares = nullptr;       // [num_rows][num_slots]
  PackedExperts gate_up;               // each [2 * intermediate][hidden]
  PackedExperts down;                  // each [hidden][intermediate]
  const uint16_t* shared = nullptr;    // [num_rows][hidden], or null
  const float* shared_gate = nullptr;  // [num_rows]
  uint16_t* out = nullptr;             // [num_rows][hidden]
  int32_t* places = nullptr;           // ExpertScratch, see there
  int32_t* pairs = nullptr;
  int32_t* begins = nullptr;
  int32_t* first_tiles = nullptr;  // [num_experts + 1]: `jobs`; row tiles of experts before
  uint16_t* rows = nullptr;
  uint16_t* act = nullptr;
  std::byte* act_codes = nullptr;
  float* products = nullptr;
  int32_t num_rows = 0;
  int32_t num_slots = 0;
  int32_t num_experts = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;

  int32_t num_pairs() const { return num_rows * num_slots; }
  // Whether experts have few pairs on average, for which tiles are smaller. The average, since
  // which kernel computes a row must not depend on what other rows chose.
  bool has_few_pairs() const { return num_pairs() <= kFewTileRows / 2 * num_experts; }
  int32_t tile_rows() const { return has_few_pairs() ? kFewTileRows : kExpertTileRows; }
};

// Any number of pairs: every pair reads the weights of its expert.
// REQUIRES: hidden and intermediate are multiples of 8; all memory is aligned to 16 bytes; up to 32
// slots, as route_experts has.
void run_each_pair(CudaStream& stream, const ExpertCall& call);

// Whether the kernels of skinny_ring.cuh multiply weights of this format. Rows of e4m3 are copied
// in pieces of 16 columns; other codes have rows with padding.
inline bool has_coded_kernel(const ExpertCall& call, WeightFormat format) {
  if (stores_e4m3(format)) return call.hidden % 16 == 0 && call.intermediate % 16 == 0;
  return stores_codes(format);
}

// run_each_pair of weights in codes, on tensor cores: act, by pair, then out. REQUIRES:
// has_coded_kernel.
void multiply_coded_gates(CudaStream& stream, const ExpertCall& call);
void multiply_coded_downs(CudaStream& stream, const ExpertCall& call);

// Fills places, pairs, begins and first_tiles, for tiles of this many pairs.
void sort_pairs(CudaStream& stream, const ExpertCall& call, int32_t tile_rows);
// Fills rows.
void gather_pairs(CudaStream& stream, const ExpertCall& call);
// out from products: the slots of a row in their order.
void sum_slots(CudaStream& stream, const ExpertCall& call);

// Whether both weights have a coded kernel, and no orders of columns: products of sorted pairs take
// them as they are then.
bool multiplies_coded_tiles(const ExpertCall& call);
// Pairs of a tile: 8, or 4 on a GPU with less shared memory.
int32_t coded_tile_rows(CudaStream& stream, const ExpertCall& call);
// act from rows, and products from act. REQUIRES: as run_each_pair; multiplies_coded_tiles;
// sort_pairs ran before, for tiles of coded_tile_rows.
void multiply_tile_gates(CudaStream& stream, const ExpertCall& call);
void multiply_tile_downs(CudaStream& stream, const ExpertCall& call);

// Neighbouring experts whose weights are bf16, row by row, at equal distances.
struct ExpertRange {
  int32_t begin = 0;
  int32_t count = 0;
  const uint16_t* weights = nullptr;  // of the first one
  int64_t stride = 0;                 // elements from an expert to the next
};

// Whether sorted pairs have kernels: on Hopper, in a build with sm_90a.
bool multiplies_sorted_pairs(CudaStream& stream);
// Products of the pairs of a range: act from rows, with weights of gate_up; products from act, with
// those of down. REQUIRES: as run_each_pair; multiplies_sorted_pairs; sort_pairs ran before.
void multiply_sorted_gates(CudaStream& stream, const ExpertCall& call, const ExpertRange& range);
void multiply_sorted_downs(CudaStream& stream, const ExpertCall& call, const ExpertRange& range);

// Whether the weights are multiplied as e4m3: on Hopper, with scales of blocks or rows, and sizes
// that are multiples of 128.
bool multiplies_sorted_codes(CudaStream& stream, const ExpertCall& call);
// As multiply_sorted_gates and multiply_sorted_downs for all experts; rows of pairs, or of act, in
// e4m3, with scales as the weights' format groups columns. REQUIRES: multiplies_sorted_codes.
void multiply_code_gates(CudaStream& stream, const ExpertCall& call, const QuantizedRows& rows);
void multiply_code_downs(CudaStream& stream, const ExpertCall& call, const QuantizedRows& act);

}  // namespace cuda
}  // namespace sluice
