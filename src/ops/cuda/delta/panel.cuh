// Panels: how chunk_factors.cu leaves matrices for the kernels that walk over chunks.
//
// A matrix in bf16 lies as panels of kDeltaChunk rows and 64 columns, whose pieces of 16 bytes are
// swizzled as Hopper's products read them (ops/cuda/wgmma.cuh): eight rows of a column of pieces
// are in different banks, and a copy has no addresses to compute. Thread rule: device code.
#pragma once

#include <cstdint>

#include "ops/delta/delta.h"

namespace sluice::cuda {

inline constexpr int kPanelWidth = 64;
using Panel = uint16_t[kDeltaChunk * kPanelWidth];

// Where an element of a panel lies; neighbours of a piece of 8 columns stay neighbours.
__host__ __device__ constexpr int in_panel(int row, int column) {
  return row * kPanelWidth + (column / 8 ^ row % 8) * 8 + column % 8;
}

}  // namespace sluice::cuda
