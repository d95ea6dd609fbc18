// The parameters of the kernels of score_tiles: ScoreTilesArgs as plain pointers and sizes, and
// their launches.
//
// Filled by tiles/score_tiles.cc. Thread rule: values; launches enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_report.h"
#include "ops/cuda/attention/kv_tensor_map.h"
#include "ops/tiles/tile_selection.h"

namespace sluice::cuda {

// Rows are packed: packed row r of a KV head is probe r / group of query head kv_head * group +
// r % group, so that the heads of a group share the keys that a block loads, and rows ascend with
// their query tile.
struct ScoreCall {
  const uint16_t* q = nullptr;  // bf16 [num_rows][num_q_heads][head_dim]
  uint16_t* vectors = nullptr;  // bf16 [num_q_heads][num_probes][width]
  float* records = nullptr;     // [num_q_heads][num_probes][num_kv_tiles]
  const int32_t* row_begin = nullptr;
  const int32_t* first_pos = nullptr;
  const int32_t* kv_begin = nullptr;
  const int32_t* kv_end = nullptr;
  const int32_t* block_table = nullptr;
  const uint32_t* visits = nullptr;  // bits of the window's first query tile; null: all are visited
  const std::byte* kv_base = nullptr;
  int64_t kv_stride_bytes = 0;
  int32_t num_blocks = 0;  // at kv_base
  TileProbes probes;
  int32_t first_row = 0;  // of the window, counted from first_pos
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 0;
  int32_t num_probes = 0;
  int32_t per_tile = 0;        // probes of a query tile, or of a segment
  int32_t segment_tokens = 0;  // not 0: probes are the last rows of segments (score_line_rows)
  int32_t line_rows = 0;       // of a segment
  int32_t width = 0;           // elements of a probe vector
  int32_t num_kv_tiles = 0;
  int32_t num_run_tiles = 0;   // of the run, at most
  int32_t lines_per_head = 2;  // as KeyRunCall has them
  int64_t head_elements = 0;
  int32_t num_splits = 1;        // blocks that share the rows of a group of keys
  int32_t num_words = 0;         // of the bits of a query tile
  int64_t visit_list_words = 0;  // from a KV head's bits to those of the next; 0: the same
  float scale = 0.0f;            // of a product of vectors
  float pool_log = 0.0f;         // kPooled: ln(key_pool_tokens)
  CudaReport report = {};        // of a KV tile beyond the records
  std::byte* scratch = nullptr;  // of the stream, for a launch
  size_t scratch_bytes = 0;
  int num_processors = 0;
};

// The keys for the copy engine: [block][line][token][channel], whose tokens are as wide as
// `row_elements`.
inline CUtensorMap make_key_map(const ScoreCall& call, int32_t row_elements, int32_t box_tokens) {
  return make_tensor_map(call.kv_base,
                         {row_elements, int64_t{call.block_tokens} * call.head_dim / row_elements,
                          int64_t{call.num_kv_heads} * call.lines_per_head, call.num_blocks},
                         {int64_t{row_elements} * 2, call.head_elements * 2 / call.lines_per_head,
                          call.kv_stride_bytes},
                         {64, box_tokens, 1, 1});
}

// Query tiles of which a block with visits has a list.
inline constexpr int32_t kMaxVisitors = 256;

// Makes the probe vectors, and writes -inf to all records of the run's tiles that a ScoreKernel
// leaves out: those above the diagonal, those of probes that do not exist, and those that are not
// visited.
cudaError_t launch_probe_vectors(cudaStream_t stream, const ScoreCall& call);

// How a kernel of scores is launched.
struct ScoreShape {
  int32_t tiles_at_once = 0;  // KV tiles of a block
  int32_t rows_at_once = 0;   // packed rows that a block multiplies at a time
  size_t shared_bytes = 0;    // of a block
  // Blocks of rows that a block multiplies one after the other; 0: as many as leave every
  // multiprocessor several blocks.
  int32_t max_turns = 0;
};

// Writes the records of visible tiles. Order: after launch_probe_vectors.
struct ScoreKernel {
  bool (*fits)(const ScoreCall& call) = nullptr;  // null: every call
  ScoreShape (*shape)(const ScoreCall& call) = nullptr;
  cudaError_t (*launch)(cudaStream_t stream, const ScoreCall& call) = nullptr;
};

ScoreKernel score_rows_kernel();   // true rows and pools, from sm_80 on
ScoreKernel score_cells_kernel();  // antidiagonals, from sm_80 on
// The same for sm_90. They fit nothing in builds without sm_90a. The first takes true rows of query
// tiles whose heads the copy engine can bring, the second all true rows.
ScoreKernel score_hopper_probes_kernel();
ScoreKernel score_hopper_rows_kernel();
ScoreKernel score_hopper_cells_kernel();

}  // namespace sluice::cuda
