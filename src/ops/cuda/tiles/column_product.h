// The parameters that the ops of columns and lines share: probe rows, and the launch of kernels
// that multiply them with keys.
//
// Thread rule: values; host functions on the host thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor_view.h"
#include "device/cuda/cuda_stream.h"
#include "ops/tiles/tile_columns.h"

namespace sluice::cuda {

struct ProbeCall {
  const uint16_t* vectors;  // [num_q_heads][num_probes][head_dim]
  const float* lse;         // [num_q_heads][num_probes]
  const int32_t* row_begin;
  const int32_t* first_pos;
  int32_t first_row;    // of the window, counted from first_pos
  int32_t num_q_tiles;  // of the window
  int32_t rows_per_tile;
  int32_t num_probes;
  int32_t head_dim;
  int32_t group;  // query heads of a KV head
  float scale;
};

// Of the args of an op that reads probe vectors.
template <typename Args>
ProbeCall probes_of(const Args& args, const TensorView& lse, int32_t num_kv_heads) {
  return {.vectors = reinterpret_cast<const uint16_t*>(args.vectors.bytes()),
          .lse = lse.data<float>(),
          .row_begin = args.batch.row_begin.template data<int32_t>(),
          .first_pos = args.batch.first_pos.template data<int32_t>(),
          .first_row = args.rows.first,
          .num_q_tiles = args.rows.num_q_tiles(),
          .rows_per_tile = args.rows_per_tile,
          .num_probes = static_cast<int32_t>(args.vectors.dim(1)),
          .head_dim = static_cast<int32_t>(args.vectors.dim(2)),
          .group = static_cast<int32_t>(args.vectors.dim(0)) / num_kv_heads,
          .scale = args.scale};
}

// Throws kUnsupported if a block's keys do not fit shared memory.
void check_column_product(const char* op, const CudaStream& stream, int32_t head_dim);

}  // namespace sluice::cuda
