// score_lines on CUDA: a block of threads for each KV tile, segment and list head.
//
// A small kernel first makes the log-sum-exp of each line row, in the arithmetic of
// tiles/masses.cuh (hence compiled without contraction). Tile: 128 keys that stay while the line
// rows of the segment pass, 128 at a time. Sums are integers, those of diagonals added by atomics,
// so that the order of additions does not matter. Thread rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_report.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/column_product.cuh"
#include "ops/cuda/tiles/key_run.cuh"
#include "ops/cuda/tiles/key_run.h"
#include "ops/cuda/tiles/masses.cuh"
#include "ops/tiles/tile_lines.h"

namespace sluice::cuda {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace): the shared parts of this kernel

constexpr int kNumDiagonals = 4;  // that a KV tile and up to kMaskTileTokens neighbouring rows meet
constexpr int kSumThreads = 256;

// ScoreLinesArgs as plain pointers and sizes.
struct LinesCall {
  ProbeCall probes;
  KeyRunCall run;
  const float* records;           // [num_q_heads][num_probes][num_kv_tiles]
  float* lse;                     // [num_q_heads][num_probes]: that of `probes`
  int32_t* verticals;             // [num_list_heads][num_segments][num_positions]
  unsigned long long* diagonals;  // [num_list_heads][num_segments][num_kv_tiles]
  const int32_t* patterns;        // [num_q_heads][num_segments]; null: all heads count
  unsigned long long* totals;     // [num_list_heads][num_segments]; null: not wanted
  LineRows lines;
  int64_t num_positions;
  int32_t num_q_heads;
  int32_t num_kv_tiles;
  int32_t num_segments;
  int32_t num_list_heads;
  int32_t kv_heads_per_list;
  CudaReport report;
};

// The positions of a segment's line rows, [begin, end), up to lines.count of them.
struct LineRange {
  int32_t begin;
  int32_t end;
};

__device__ inline LineRange lines_of(const LinesCall& call, const ProbeRun& run, int32_t segment) {
  const int32_t begin = run.first_q_tile * kMaskTileTokens + segment * call.lines.segment_tokens;
  const int32_t end = min(begin + call.lines.segment_tokens, run.end_pos);
  return {max(begin, end - call.lines.count), end};
}

// Whether the head of probe `probe` of all attends by lines in its segment.
__device__ inline bool counts(const LinesCall& call, int64_t probe) {
  if (call.patterns == nullptr) return true;
  const int64_t head = probe / call.probes.num_probes;
  const int64_t segment = probe % call.probes.num_probes / call.lines.count;
  return call.patterns[head * call.num_segments + segment] ==
         static_cast<int32_t>(HeadPattern::kLines);
}

// grid: probes of all query heads, a warp each. The run from token 0 clears diagonals and totals.
__global__ void __launch_bounds__(kSumThreads) line_sums_kernel(const LinesCall call) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  const int64_t num_threads = static_cast<int64_t>(gridDim.x) * kSumThreads;
  if (*call.run.kv_begin == 0) {
    const int64_t num_lists = static_cast<int64_t>(call.num_list_heads) * call.num_segments;
    const int64_t num_diagonals = num_lists * call.num_kv_tiles;
    for (int64_t i = thread; i < num_diagonals; i += num_threads) call.diagonals[i] = 0;
    for (int64_t i = thread; i < num_lists && call.totals != nullptr; i += num_threads) {
      call.totals[i] = 0;
    }
  }
  const int64_t probe = thread / kWarpThreads;
  if (probe >= static_cast<int64_t>(call.num_q_heads) * call.probes.num_probes) return;
  const int32_t end_pos = ProbeRun(call.probes).end_pos;
  const int32_t num_tiles = (end_pos + kMaskTileTokens - 1) / kMaskTileTokens;
  const float lse =
      log_sum_exp(call.records + probe * call.num_kv_tiles, min(num_tiles, call.num_kv_tiles));
  if (threadIdx.x % kWarpThreads != 0) return;
  call.lse[probe] = counts(call, probe) ? lse : NAN;
  if (probe == 0 && num_tiles > call.num_kv_tiles) fail_row(call.report, call.num_kv_tiles);
}

// Line row `row` of a segment and KV head: all rows of a query head, then those of the next.
__device__ inline ProbePlace line_place(const LinesCall& call, const LineRange& range,
                                        int32_t segment, int32_t kv_head, int32_t row) {
  const ProbeCall& probes = call.probes;
  const int32_t count = call.lines.count;
  if (row >= probes.group * count) return {};
  const int32_t position = range.end - count + row % count;
  if (position < range.begin) return {};
  const int64_t q_head = kv_head * probes.group + row / count;
  const int64_t probe = q_head * probes.num_probes + segment * count + row % count;
  const float lse = call.lse[probe];
  if (!isfinite(lse)) return {};
  return {probes.vectors + probe * probes.head_dim, lse, position + 1};
}

// What a thread has added up.
struct LineSums {
  uint32_t verticals[kThreadKeys] = {};
  unsigned long long diagonals[kNumDiagonals] = {};
};

// Adds the probabilities of the thread's rows. Offset o lies between diagonals o / kMaskTileTokens
// and the next.
__device__ __forceinline__ void add_rows(const LinesCall& call, const ProductShared& shared,
                                         int32_t first_position, int32_t kv_end,
                                         int32_t first_diagonal, const float (&s)[2][64],
                                         LineSums& sums) {
#pragma unroll
  for (int row = 0; row < 4; ++row) {
    const ProbePlace& place = place_of_row(shared, row / 2, row % 2);
    const int32_t num_visible = min(place.limit, kv_end) - first_position;
    const int32_t first_offset = place.limit - 1 - first_position;
    const float lse = place.lse;
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) {
      const int key = key_of_score(i);
      if (key >= num_visible) continue;
      const float score = s[row / 2][i / 2 * 4 + row % 2 * 2 + i % 2];
      const uint32_t units = to_units(share_of(score, call.probes.scale, lse));
      sums.verticals[i] = add_up(sums.verticals[i], units);
      const int32_t offset = first_offset - key;
      const int32_t diagonal = offset / kMaskTileTokens - first_diagonal;
      const uint32_t past = static_cast<uint32_t>(offset % kMaskTileTokens);
      const uint32_t to_next = units * past;  // at most 2^31 together
      const uint32_t to_own = units * (kMaskTileTokens - past);
#pragma unroll
      for (int d = 0; d < kNumDiagonals; ++d) {
        sums.diagonals[d] += d == diagonal ? to_own : d == diagonal + 1 ? to_next : 0;
      }
    }
  }
}

__device__ __forceinline__ void write_verticals(LineSums& sums, ProductShared& shared,
                                                int32_t* verticals) {
  add_up_lanes(sums.verticals);
  auto& partials = shared.counts;
  if (threadIdx.x % kWarpThreads < 4) {
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) {
      partials[threadIdx.x / kWarpThreads][key_of_score(i)] = sums.verticals[i];
    }
  }
  __syncthreads();
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kProductWarps; ++i) sum = add_up(sum, partials[i][threadIdx.x]);
  verticals[threadIdx.x] = static_cast<int32_t>(sum);
}

// `num_left` diagonals lie from the first one on: beyond them only offsets of more than all keys
// would. All of them together are kMaskTileTokens times the total; `total` may be null.
__device__ __forceinline__ void add_diagonals(const LineSums& sums, int32_t num_left,
                                              unsigned long long* diagonals,
                                              unsigned long long* total) {
  unsigned long long all = 0;
#pragma unroll
  for (int d = 0; d < kNumDiagonals; ++d) {
    unsigned long long sum = sums.diagonals[d];
#pragma unroll
    for (int step = kWarpThreads / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(kFullWarp, sum, step);
    }
    if (threadIdx.x % kWarpThreads == 0 && sum > 0 && d < num_left) atomicAdd(&diagonals[d], sum);
    all += sum;
  }
  if (threadIdx.x % kWarpThreads == 0 && all > 0 && total != nullptr) {
    atomicAdd(total, all / kMaskTileTokens);
  }
}

// grid: KV tiles of the run, segments, list heads.
__global__ void __launch_bounds__(kProductThreads, 2)
    score_lines_kernel(const __grid_constant__ LinesCall call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<ProductShared*>(shared_bytes);
  const ProbeCall& probes = call.probes;
  const int32_t kv_begin = *call.run.kv_begin;
  const int32_t kv_end = *call.run.kv_end;
  const int32_t first_position = kv_begin + static_cast<int32_t>(blockIdx.x) * kMaskTileTokens;
  if (first_position >= kv_end) return;
  const int32_t kv_tile = first_position / kMaskTileTokens;
  if (first_position + kMaskTileTokens > call.num_positions || kv_tile >= call.num_kv_tiles) {
    if (threadIdx.x == 0) fail_row(call.report, kv_tile);
    return;
  }
  const auto segment = static_cast<int32_t>(blockIdx.y);
  const auto list = static_cast<int32_t>(blockIdx.z);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const LineRange range = lines_of(call, ProbeRun(probes), segment);
  const int32_t first_diagonal =
      max(0, range.begin - first_position - kMaskTileTokens + 1) / kMaskTileTokens;
  const bool is_seen = range.begin < range.end && range.end > first_position;
  const int32_t num_rows = is_seen ? probes.group * call.lines.count : 0;

  LineSums sums;
  for (int32_t h = 0; num_rows > 0 && h < call.kv_heads_per_list; ++h) {
    const int32_t kv_head = list * call.kv_heads_per_list + h;
    const int32_t position = first_position + thread;
    load_keys(probes,
              position < kv_end ? key_of_run(call.run, kv_begin, kv_head, position) : nullptr,
              shared);
    for (int32_t first = 0; first < num_rows; first += kProductRows) {
      __syncwarp();  // the warp has read its probes before
      shared.probes[thread] = line_place(call, range, segment, kv_head, first + thread);
      float s[2][64] = {};
      multiply_probes(probes, shared, s);
      add_rows(call, shared, first_position, kv_end, first_diagonal, s, sums);
    }
  }
  const int64_t row = static_cast<int64_t>(list) * call.num_segments + segment;
  write_verticals(sums, shared, call.verticals + row * call.num_positions + first_position);
  add_diagonals(sums, call.num_kv_tiles - first_diagonal,
                call.diagonals + row * call.num_kv_tiles + first_diagonal,
                call.totals == nullptr ? nullptr : call.totals + row);
}

LinesCall make_call(const ScoreLinesArgs& args) {
  const int32_t num_kv_heads = args.kv.shape.num_kv_heads;
  const auto num_q_heads = static_cast<int32_t>(args.vectors.dim(0));
  const auto num_lists = static_cast<int32_t>(args.verticals.dim(0));
  const ProbeCall probes{.vectors = reinterpret_cast<const uint16_t*>(args.vectors.bytes()),
                         .lse = args.lse.data<float>(),
                         .row_begin = args.batch.row_begin.data<int32_t>(),
                         .first_pos = args.batch.first_pos.data<int32_t>(),
                         .first_row = args.rows.first,
                         .num_q_tiles = args.rows.num_q_tiles(),
                         .rows_per_tile = 0,
                         .num_probes = static_cast<int32_t>(args.vectors.dim(1)),
                         .head_dim = static_cast<int32_t>(args.vectors.dim(2)),
                         .group = num_q_heads / num_kv_heads,
                         .scale = args.scale};
  return {.probes = probes,
          .run = key_run_of(args),
          .records = args.records.data<float>(),
          .lse = args.lse.data<float>(),
          .verticals = args.verticals.data<int32_t>(),
          .diagonals = reinterpret_cast<unsigned long long*>(args.diagonals.data<int64_t>()),
          .patterns = args.patterns.present() ? args.patterns.data<int32_t>() : nullptr,
          .totals = args.totals.present()
                        ? reinterpret_cast<unsigned long long*>(args.totals.data<int64_t>())
                        : nullptr,
          .lines = args.lines,
          .num_positions = args.verticals.dim(2),
          .num_q_heads = num_q_heads,
          .num_kv_tiles = static_cast<int32_t>(args.records.dim(2)),
          .num_segments = static_cast<int32_t>(args.verticals.dim(1)),
          .num_list_heads = num_lists,
          .kv_heads_per_list = num_kv_heads / num_lists};
}

}  // namespace

void CudaOps::score_lines(Stream& on, const ScoreLinesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  LinesCall call = make_call(args);
  check_key_run("score_lines", stream, args.kv);
  check_column_product("score_lines", stream, call.probes.head_dim);
  if (call.run.num_run_tiles == 0 || args.verticals.num_elements() == 0) return;
  stream.submit("score_lines", [&](cudaStream_t handle) {
    call.report = stream.report("score_lines",
                                "KV tile {} lies beyond the records or verticals; give room for "
                                "all keys up to kv_end");
    convert_key_run(stream, handle, args.kv, call.run);
    constexpr int kWarps = kSumThreads / kWarpThreads;
    const int64_t num_warps = static_cast<int64_t>(call.num_q_heads) * call.probes.num_probes;
    line_sums_kernel<<<static_cast<unsigned>((num_warps + kWarps - 1) / kWarps), kSumThreads, 0,
                       handle>>>(call);
    check_cuda(cudaGetLastError(), "launch of line sums");
    const size_t num_bytes = product_bytes(call.probes.head_dim);
    check_cuda(cudaFuncSetAttribute(score_lines_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(num_bytes)),
               "cudaFuncSetAttribute");
    const dim3 grid(static_cast<unsigned>(call.run.num_run_tiles),
                    static_cast<unsigned>(call.num_segments),
                    static_cast<unsigned>(call.num_list_heads));
    score_lines_kernel<<<grid, kProductThreads, num_bytes, handle>>>(call);
  });
}

}  // namespace sluice::cuda
