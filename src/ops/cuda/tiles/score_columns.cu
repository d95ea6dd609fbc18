// score_columns on CUDA: a block of threads for each KV tile, segment and list head.
//
// Bound: exponentials, one for 2 head_dim operations of the tensor cores. Tile: 128 keys that stay
// while the column probes of the segment pass, 128 at a time, those of a query head after those of
// another. Sums are integers that end at kMaxColumnScore, so that the order of additions does not
// matter. Thread rule: enqueue only.
#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/column_product.cuh"
#include "ops/cuda/tiles/key_run.cuh"
#include "ops/cuda/tiles/key_run.h"

namespace sluice::cuda {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace): the shared parts of this kernel

constexpr int kNumSums = 32;  // keys of a thread's scores

// ScoreColumnsArgs as plain pointers and sizes.
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

// Sums end at kMaxColumnScore, of which two fit 32 bits.
__device__ __forceinline__ uint32_t add_up(uint32_t a, uint32_t b) {
  return min(a + b, kMaxColumnScore);
}

// Rounded down; 0 for NaN.
__device__ __forceinline__ uint32_t to_units(float share) {
  if (!(share > 0.0f)) return 0;
  return min(__float2uint_rz(share * static_cast<float>(kColumnOne)), kColumnOne);
}

// Query tiles [begin, end) of the window, those of a segment that may see a KV tile.
struct Entries {
  int32_t begin;
  int32_t end;
};

__device__ inline Entries entries_of(const ColumnsCall& call, const ProbeRun& rows, int32_t segment,
                                     int32_t kv_tile) {
  const int32_t of_segment =
      (rows.first_q_tile / call.tiles_per_segment + segment) * call.tiles_per_segment;
  const int32_t first_tile = max(max(of_segment, kv_tile), rows.first_q_tile);
  const int32_t end_tile =
      min(of_segment + call.tiles_per_segment, rows.first_q_tile + call.probes.num_q_tiles);
  return {first_tile - rows.first_q_tile, end_tile - rows.first_q_tile};
}

// Adds the shares of the thread's rows to its sums.
__device__ __forceinline__ void add_shares(const ColumnsCall& call, const ProductShared& shared,
                                           int32_t first_position, int32_t kv_end,
                                           const float (&s)[2][64], uint32_t (&sums)[kNumSums]) {
#pragma unroll
  for (int row = 0; row < 4; ++row) {
    const ProbePlace& place = place_of_row(shared, row / 2, row % 2);
    const int32_t num_visible = min(place.limit, kv_end) - first_position;
    const float lse = place.lse;
#pragma unroll
    for (int i = 0; i < kNumSums; ++i) {
      const float score = s[row / 2][i / 2 * 4 + row % 2 * 2 + i % 2];
      const uint32_t units = to_units(share_of(score, call.probes.scale, lse));
      sums[i] = add_up(sums[i], key_of_score(i) < num_visible ? units : 0);
    }
  }
}

// Adds up the sums of all rows of the block and writes them.
__device__ __forceinline__ void write_sums(const uint32_t (&sums)[kNumSums], ProductShared& shared,
                                           int32_t* scores) {
  const int warp = threadIdx.x / kWarpThreads;
#pragma unroll
  for (int i = 0; i < kNumSums; ++i) {
    uint32_t sum = sums[i];
#pragma unroll
    for (int step = 4; step < kWarpThreads; step *= 2) {  // lanes of the same keys
      sum = add_up(sum, __shfl_xor_sync(kFullWarp, sum, step));
    }
    if (threadIdx.x % kWarpThreads < 4) shared.counts[warp][key_of_score(i)] = sum;
  }
  __syncthreads();
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kProductWarps; ++i) sum = add_up(sum, shared.counts[i][threadIdx.x]);
  scores[threadIdx.x] = static_cast<int32_t>(sum);
}

// grid: KV tiles of the run, segments, list heads.
__global__ void __launch_bounds__(kProductThreads, 2)
    score_columns_kernel(const __grid_constant__ ColumnsCall call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<ProductShared*>(shared_bytes);
  const ProbeCall& probes = call.probes;
  const int32_t kv_begin = *call.run.kv_begin;
  const int32_t kv_end = *call.run.kv_end;
  const int32_t first_position = kv_begin + static_cast<int32_t>(blockIdx.x) * kMaskTileTokens;
  if (first_position >= kv_end) return;
  if (first_position + kMaskTileTokens > call.num_positions) {
    if (threadIdx.x == 0) fail_row(call.report, first_position / kMaskTileTokens);
    return;
  }
  const ProbeRun rows(probes);
  const auto segment = static_cast<int32_t>(blockIdx.y);
  const auto list = static_cast<int32_t>(blockIdx.z);
  const Entries entries = entries_of(call, rows, segment, first_position / kMaskTileTokens);
  const int32_t num_rows = max(entries.end - entries.begin, 0) * probes.group;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t sums[kNumSums] = {};
  for (int32_t h = 0; num_rows > 0 && h < call.kv_heads_per_list; ++h) {
    const int32_t kv_head = list * call.kv_heads_per_list + h;
    const int32_t position = first_position + thread;
    load_keys(probes,
              position < kv_end ? key_of_run(call.run, kv_begin, kv_head, position) : nullptr,
              shared);
    for (int32_t first = 0; first < num_rows; first += kProductRows) {
      const int32_t row = first + thread;
      const int32_t entry = entries.begin + row / probes.group;
      const int32_t index = column_probe(rows.first_q_tile + entry, probes.rows_per_tile);
      __syncwarp();  // the warp has read its probes before
      shared.probes[thread] =
          row < num_rows
              ? place_of(probes, rows, kv_head * probes.group + row % probes.group, entry, index)
              : ProbePlace{};
      float s[2][64] = {};
      multiply_probes(probes, shared, s);
      add_shares(call, shared, first_position, kv_end, s, sums);
    }
  }
  write_sums(sums, shared,
             call.scores +
                 (static_cast<int64_t>(list) * call.num_segments + segment) * call.num_positions +
                 first_position);
}

}  // namespace

void check_column_product(const char* op, const CudaStream& stream, int32_t head_dim) {
  const size_t most_bytes = stream.cuda_device().properties().sharedMemPerBlockOptin;
  if (product_bytes(head_dim) > most_bytes) {
    fail(ErrorCode::kUnsupported,
         "{} on {}: keys of {} elements take {} bytes of shared memory, it has {}; use the device "
         "'cpu'",
         op, stream.device().info().name, head_dim, product_bytes(head_dim), most_bytes);
  }
}

void CudaOps::score_columns(Stream& on, const ScoreColumnsArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const int32_t num_kv_heads = args.kv.shape.num_kv_heads;
  const auto num_lists = static_cast<int32_t>(args.scores.dim(0));
  ColumnsCall call{.probes = probes_of(args, args.lse, num_kv_heads),
                   .run = key_run_of(args),
                   .scores = args.scores.data<int32_t>(),
                   .num_positions = args.scores.dim(2),
                   .num_segments = static_cast<int32_t>(args.scores.dim(1)),
                   .kv_heads_per_list = num_kv_heads / num_lists,
                   .tiles_per_segment = args.segment_tokens / kMaskTileTokens};
  check_key_run("score_columns", stream, args.kv);
  check_column_product("score_columns", stream, call.probes.head_dim);
  if (call.run.num_run_tiles == 0 || args.scores.num_elements() == 0) return;
  stream.submit("score_columns", [&](cudaStream_t handle) {
    call.report = stream.report("score_columns",
                                "KV tile {} lies beyond the scores; give room for the scores of "
                                "all keys up to kv_end");
    const size_t num_bytes = product_bytes(call.probes.head_dim);
    check_cuda(
        cudaFuncSetAttribute(score_columns_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(num_bytes)),
        "cudaFuncSetAttribute");
    const dim3 grid(static_cast<unsigned>(call.run.num_run_tiles),
                    static_cast<unsigned>(call.num_segments), static_cast<unsigned>(num_lists));
    score_columns_kernel<<<grid, kProductThreads, num_bytes, handle>>>(call);
  });
}

}  // namespace sluice::cuda
