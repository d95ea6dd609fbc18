// choose_patterns on CUDA: a block of threads for each segment and query head.
//
// Both shares of mass lie in shared memory as integers (tiles/masses.cuh); the sum of terms is one
// of integers as well. Bound: two exponentials for each record. Compiled without contraction, as
// ops/portable_math.h requires: the bits are those of the CPU. Thread rule: enqueue only.
#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/block_reducer.cuh"
#include "ops/cuda/tiles/masses.cuh"
#include "ops/tiles/head_patterns.h"

namespace sluice::cuda {
namespace {

using Reducer = BlockReducer<kMassThreads>;

// ChoosePatternsArgs as plain pointers and sizes.
struct PatternsCall {
  RecordsCall records;  // a list for each query head, an entry for each segment
  RecordsCall pooled;
  const int32_t* row_begin;
  const int32_t* first_pos;
  int64_t limit;      // of the sum of terms
  int32_t* patterns;  // [num_q_heads][num_segments]
  int32_t num_segments;
  CudaReport report;
};

struct Shared {
  ProbeSums probes;
  Reducer::Shared reducer;
};

// grid: segments, query heads.
__global__ void __launch_bounds__(kMassThreads) choose_patterns_kernel(const PatternsCall call) {
  extern __shared__ uint32_t masses[];  // [2][num_kv_tiles]: true, pooled
  __shared__ Shared shared;
  const auto segment = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int32_t num_kv_tiles = call.records.num_kv_tiles;
  const int32_t end_pos = *call.first_pos + call.row_begin[1] - call.row_begin[0];
  const int32_t num_tiles = (end_pos + kMaskTileTokens - 1) / kMaskTileTokens;
  if (num_tiles > num_kv_tiles) {
    if (threadIdx.x == 0) fail_row(call.report, num_kv_tiles);
    return;
  }
  uint32_t* pooled = masses + num_kv_tiles;
  find_masses(call.records, head, segment, num_tiles, shared.probes, masses);
  find_masses(call.pooled, head, segment, num_tiles, shared.probes, pooled);
  // A thread has written what it reads here.
  uint64_t terms = 0;
  uint64_t true_mass = 0;
  uint64_t pooled_mass = 0;
  for (int32_t j = threadIdx.x; j < num_tiles; j += kMassThreads) {
    terms += static_cast<uint64_t>(divergence_term(masses[j], pooled[j]));
    true_mass += masses[j];
    pooled_mass += pooled[j];
  }
  Reducer reducer(shared.reducer);
  const auto divergence = static_cast<int64_t>(reducer.sum(terms));
  const bool is_usable = reducer.sum(true_mass) > 0 && reducer.sum(pooled_mass) > 0;
  if (threadIdx.x != 0) return;
  const HeadPattern pattern =
      divergence < call.limit && is_usable ? HeadPattern::kTiles : HeadPattern::kLines;
  call.patterns[head * call.num_segments + segment] = static_cast<int32_t>(pattern);
}

RecordsCall records_of(const TensorView& records, int32_t per_segment) {
  return {.records = records.data<float>(),
          .lse = nullptr,
          .per_tile = per_segment,
          .num_probes = static_cast<int32_t>(records.dim(1)),
          .num_kv_tiles = static_cast<int32_t>(records.dim(2)),
          .heads_per_list = 1,
          .heads = {}};
}

}  // namespace

void CudaOps::choose_patterns(Stream& on, const ChoosePatternsArgs& args) const {
  CudaStream& stream = as_cuda(on);
  PatternsCall call{.records = records_of(args.records, args.lines.count),
                    .pooled = records_of(args.pooled, 1),
                    .row_begin = args.batch.row_begin.data<int32_t>(),
                    .first_pos = args.batch.first_pos.data<int32_t>(),
                    .limit = divergence_limit(args.divergence),
                    .patterns = args.patterns.data<int32_t>(),
                    .num_segments = static_cast<int32_t>(args.patterns.dim(1)),
                    .report = {}};
  const size_t num_bytes = 2 * static_cast<size_t>(args.records.dim(2)) * sizeof(uint32_t);
  const size_t most_bytes = stream.cuda_device().properties().sharedMemPerBlockOptin;
  if (num_bytes + sizeof(Shared) > most_bytes) {
    fail(ErrorCode::kUnsupported,
         "choose_patterns on {}: masses of {} KV tiles take {} bytes of shared memory, it has {}; "
         "use a shorter prompt or the device 'cpu'",
         stream.device().info().name, args.records.dim(2), num_bytes, most_bytes - sizeof(Shared));
  }
  if (args.patterns.num_elements() == 0) return;
  stream.submit("choose_patterns", [&](cudaStream_t handle) {
    call.report = stream.report("choose_patterns",
                                "KV tile {} has no records; make records of all KV tiles up to the "
                                "last row");
    check_cuda(
        cudaFuncSetAttribute(choose_patterns_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(num_bytes)),
        "cudaFuncSetAttribute");
    const dim3 grid(static_cast<unsigned>(call.num_segments),
                    static_cast<unsigned>(args.patterns.dim(0)));
    choose_patterns_kernel<<<grid, kMassThreads, num_bytes, handle>>>(call);
  });
}

}  // namespace sluice::cuda
