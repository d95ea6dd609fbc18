// The parts of a mixture of experts on CUDA.
//
// experts.cc chooses: few pairs of row and slot read their expert's weights each for itself; many
// are sorted by expert, and tiles of them share the weights. Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/experts/experts.h"

namespace sluice {

class CudaStream;

namespace cuda {

// Plain pointers and sizes of ExpertMlpArgs. Weights are bf16, row by row.
struct ExpertCall {
  const uint16_t* x = nullptr;        // [num_rows][hidden]
  const int32_t* experts = nullptr;   // [num_rows][num_slots]
  const float* shares = nullptr;      // [num_rows][num_slots]
  const uint16_t* gate_up = nullptr;  // of expert 0: [2 * intermediate][hidden]
  const uint16_t* down = nullptr;     // of expert 0: [hidden][intermediate]
  int64_t gate_up_stride = 0;         // elements from an expert to the next
  int64_t down_stride = 0;
  const uint16_t* shared = nullptr;    // [num_rows][hidden], or null
  const float* shared_gate = nullptr;  // [num_rows]
  uint16_t* out = nullptr;             // [num_rows][hidden]
  int32_t* places = nullptr;           // ExpertScratch, see there
  int32_t* pairs = nullptr;
  int32_t* begins = nullptr;
  int32_t* first_tiles = nullptr;  // [num_experts + 1]: `jobs`; row tiles of experts before
  uint16_t* rows = nullptr;
  uint16_t* act = nullptr;
  float* products = nullptr;
  int32_t num_rows = 0;
  int32_t num_slots = 0;
  int32_t num_experts = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;

  int32_t num_pairs() const { return num_rows * num_slots; }
};

inline constexpr int32_t kExpertTileRows = 128;  // pairs of one expert that a CTA multiplies

// Any number of pairs: every pair reads the weights of its expert.
// REQUIRES: hidden and intermediate are multiples of 8; all memory is aligned to 16 bytes.
void run_each_pair(CudaStream& stream, const ExpertCall& call);

// Fills places, pairs, begins, first_tiles and rows.
void sort_pairs(CudaStream& stream, const ExpertCall& call);
// out from products: the slots of a row in their order.
void sum_slots(CudaStream& stream, const ExpertCall& call);

// Products of sorted pairs on Hopper: act from rows, products from act.
// REQUIRES: as run_each_pair. Returns false, having enqueued nothing, in a build without sm_90a.
bool multiply_sorted_pairs(CudaStream& stream, const ExpertCall& call);

}  // namespace cuda
}  // namespace sluice
