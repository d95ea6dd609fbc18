// score_columns on CUDA, the general kernel: a block of threads for each KV tile and list head and
// for some segments. Hopper has one of its own for most shapes (tiles/score_columns_sm90.cu).
//
// Bound: exponentials, one for 2 head_dim operations of the tensor cores, and reads of keys, once
// for kProductWarps segments. Tile: 128 keys that stay while column probes pass, of each segment 32
// at a time: a warp has a segment of its own, since short segments have few probes. Sums are
// integers that end at kMaxColumnScore, so that the order of additions does not matter. Thread
// rule: enqueue only.
#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/attention/scratch.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/column_product.cuh"
#include "ops/cuda/tiles/columns_call.h"
#include "ops/cuda/tiles/key_run.cuh"

namespace sluice::cuda {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace): the shared parts of this kernel

// The probes of a segment that may see a KV tile: those of query tiles from `first_entry` of the
// window on, all heads of a group side by side.
struct SegmentRows {
  int32_t first_entry = 0;
  int32_t count = 0;
};

__device__ inline SegmentRows rows_of(const ColumnsCall& call, const ProbeRun& run, int32_t segment,
                                      int32_t kv_tile) {
  if (segment >= call.num_segments) return {};
  const int32_t of_segment =
      (run.first_q_tile / call.tiles_per_segment + segment) * call.tiles_per_segment;
  const int32_t first_tile = max(max(of_segment, kv_tile), run.first_q_tile);
  const int32_t end_tile =
      min(of_segment + call.tiles_per_segment, run.first_q_tile + call.probes.num_q_tiles);
  return {first_tile - run.first_q_tile, max(end_tile - first_tile, 0) * call.probes.group};
}

// Adds the shares of the thread's rows to its sums.
__device__ __forceinline__ void add_shares(const ColumnsCall& call, const ProductShared& shared,
                                           int32_t first_position, int32_t kv_end,
                                           const float (&s)[2][64], uint32_t (&sums)[kThreadKeys]) {
#pragma unroll
  for (int row = 0; row < 4; ++row) {
    const ProbePlace& place = place_of_row(shared, row / 2, row % 2);
    const int32_t num_visible = min(place.limit, kv_end) - first_position;
    const float lse = place.lse;
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) {
      const float score = s[row / 2][i / 2 * 4 + row % 2 * 2 + i % 2];
      const uint32_t units = to_units(share_of(score, call.probes.scale, lse));
      sums[i] = add_up(sums[i], key_of_score(i) < num_visible ? units : 0);
    }
  }
}

// Adds up the sums of the warp's rows and writes them.
__device__ __forceinline__ void write_sums(uint32_t (&sums)[kThreadKeys], int32_t* scores) {
  add_up_lanes(sums);
  if (threadIdx.x % kWarpThreads >= 4) return;
#pragma unroll
  for (int i = 0; i < kThreadKeys; ++i) scores[key_of_score(i)] = static_cast<int32_t>(sums[i]);
}

// grid: KV tiles of the run, groups of segments, list heads.
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
  const ProbeRun run(probes);
  const auto list = static_cast<int32_t>(blockIdx.z);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t first_segment = static_cast<int32_t>(blockIdx.y) * kProductWarps;
  const int32_t segment = first_segment + thread / kWarpThreads;
  const int32_t kv_tile = first_position / kMaskTileTokens;
  const SegmentRows rows = rows_of(call, run, segment, kv_tile);
  int32_t most_rows = 0;  // of a warp
  for (int i = 0; i < kProductWarps; ++i) {
    most_rows = max(most_rows, rows_of(call, run, first_segment + i, kv_tile).count);
  }

  uint32_t sums[kThreadKeys] = {};
  for (int32_t h = 0; most_rows > 0 && h < call.kv_heads_per_list; ++h) {
    const int32_t kv_head = list * call.kv_heads_per_list + h;
    const int32_t position = first_position + thread;
    load_keys(probes,
              position < kv_end ? key_of_run(call.run, kv_begin, kv_head, position) : nullptr,
              shared);
    for (int32_t first = 0; first < most_rows; first += kWarpRows) {
      const int32_t row = first + thread % kWarpThreads;
      const int32_t entry = rows.first_entry + row / probes.group;
      const int32_t index = column_probe(run.first_q_tile + entry, probes.rows_per_tile);
      __syncwarp();  // the warp has read its probes before
      shared.probes[thread] =
          row < rows.count
              ? place_of(probes, run, kv_head * probes.group + row % probes.group, entry, index)
              : ProbePlace{};
      float s[2][64] = {};
      multiply_probes(probes, shared, s);
      if (first < rows.count) add_shares(call, shared, first_position, kv_end, s, sums);
    }
  }
  if (segment >= call.num_segments) return;
  const int64_t row = static_cast<int64_t>(list) * call.num_segments + segment;
  write_sums(sums, call.scores + row * call.num_positions + first_position);
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

namespace {

void launch_general(cudaStream_t stream, const ColumnsCall& call, int32_t num_lists) {
  const size_t num_bytes = product_bytes(call.probes.head_dim);
  check_cuda(cudaFuncSetAttribute(score_columns_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(num_bytes)),
             "cudaFuncSetAttribute");
  const dim3 grid(static_cast<unsigned>(call.run.num_run_tiles),
                  static_cast<unsigned>((call.num_segments + kProductWarps - 1) / kProductWarps),
                  static_cast<unsigned>(num_lists));
  score_columns_kernel<<<grid, kProductThreads, num_bytes, stream>>>(call);
}

}  // namespace

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
  const cudaDeviceProp& gpu = stream.cuda_device().properties();
  const HopperColumns hopper = score_hopper_columns();
  const bool is_hopper =
      gpu.major == 9 && gpu.minor == 0 && hopper.fits(call, AttentionScratch::data_bytes());
  stream.submit("score_columns", [&](cudaStream_t handle) {
    call.report = stream.report("score_columns",
                                "KV tile {} lies beyond the scores; give room for the scores of "
                                "all keys up to kv_end");
    const KvBlocksView keys = convert_key_run(stream, handle, args.kv, call.run);
    if (is_hopper) {
      check_cuda(hopper.launch(handle, call,
                               {.kv = keys,
                                .scratch = attention_scratch(stream).data(),
                                .scratch_bytes = AttentionScratch::data_bytes(),
                                .num_processors = gpu.multiProcessorCount}),
                 "launch of column scores");
    } else {
      launch_general(handle, call, num_lists);
    }
  });
}

}  // namespace sluice::cuda
