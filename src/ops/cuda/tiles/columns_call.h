// The parameters of the kernels of score_columns: ScoreColumnsArgs as plain pointers and sizes, and
// the launch of the one for Hopper.
//
// Filled by tiles/score_columns.cu. Thread rule: values; launches enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_report.h"
#include "ops/cuda/tiles/column_product.h"
#include "ops/cuda/tiles/key_run.h"

namespace sluice::cuda {

struct ColumnsCall {
  ProbeCall probes;
  KeyRunCall run;
  int32_t* scores;  // [num_list_heads][num_segments][num_positions]
  int64_t num_positions;
  int32_t num_segments;
  int32_t kv_heads_per_list;
  int32_t tiles_per_segment;
  CudaReport report;
};

// What a launch has beside the call.
struct ColumnsLaunch {
  KvBlocksView kv;  // the blocks of the run, in bf16
  std::byte* scratch;
  size_t scratch_bytes;
  int num_processors;
};

struct HopperColumns {
  // Whether the kernel supports the call: by what all windows of rows share, since scores must not
  // depend on the window.
  bool (*fits)(const ColumnsCall& call, size_t scratch_bytes);
  // The probes of all segments are packed into the scratch, or the call runs in rounds.
  cudaError_t (*launch)(cudaStream_t stream, const ColumnsCall& call, const ColumnsLaunch& launch);
};

// Fits nothing in builds without sm_90a.
HopperColumns score_hopper_columns();

}  // namespace sluice::cuda
