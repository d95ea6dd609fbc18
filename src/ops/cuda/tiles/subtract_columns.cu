// subtract_columns on CUDA: a block of threads for each query tile and list head.
//
// Tile: 128 columns by the probes of the query tile, a KV head after another. The order of a sum is
// fixed, and masses are subtracted as integers. Little work beside score_columns: most rows of a
// product are empty. Thread rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/column_product.cuh"
#include "ops/cuda/tiles/key_run.h"

namespace sluice::cuda {
namespace {

using namespace tiles;  // NOLINT(google-build-using-namespace): the shared parts of this kernel

// SubtractColumnsArgs as plain pointers and sizes.
struct SubtractCall {
  ProbeCall probes;
  const int32_t* positions;  // [num_list_heads][num_segments][max_columns]
  const int32_t* count;      // [num_list_heads][num_segments]
  const uint16_t* kv;        // [num_segments][num_kv_heads][2][max_columns][head_dim]
  int32_t* masses;           // [num_list_heads][num_q_tiles][num_kv_tiles]
  int32_t* column_mass;      // [num_list_heads][num_q_tiles]
  int32_t num_kv_heads;
  int32_t kv_heads_per_list;
  int32_t num_segments;
  int32_t max_columns;
  int32_t segment_tokens;
  int32_t first_segment;
  int32_t num_kv_tiles;
  CudaReport report;
};

// Probe `row` of a KV head: all probes of a query head, then those of the next.
__device__ inline ProbePlace probe_of(const SubtractCall& call, const ProbeRun& rows,
                                      int32_t kv_head, int32_t entry, int32_t row) {
  const ProbeCall& probes = call.probes;
  if (row >= probes.group * probes.rows_per_tile) return {};
  return place_of(probes, rows, kv_head * probes.group + row / probes.rows_per_tile, entry,
                  row % probes.rows_per_tile);
}

__device__ inline int32_t count_usable(const SubtractCall& call, const ProbeRun& rows,
                                       int32_t first_kv_head, int32_t entry) {
  const int32_t of_kv_head = call.probes.group * call.probes.rows_per_tile;
  int32_t count = 0;
  for (int32_t h = 0; h < call.kv_heads_per_list; ++h) {
    for (int32_t first = 0; first < of_kv_head; first += kProductThreads) {
      const auto row = first + static_cast<int32_t>(threadIdx.x);
      const bool is_usable = probe_of(call, rows, first_kv_head + h, entry, row).limit > 0;
      count += __syncthreads_count(is_usable ? 1 : 0);
    }
  }
  return count;
}

// The sum of the shares of the rows at hand of the thread's own column: rows of a thread, then
// lanes, then warps.
__device__ __forceinline__ float sum_shares(const SubtractCall& call, const float (&s)[2][64],
                                            ProductShared& shared) {
  const int warp = threadIdx.x / kWarpThreads;
  float sums[kThreadKeys] = {};
#pragma unroll
  for (int row = 0; row < 4; ++row) {
    const ProbePlace& place = place_of_row(shared, row / 2, row % 2);
    const int32_t limit = place.limit;
    const float lse = place.lse;
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) {
      const float score = s[row / 2][i / 2 * 4 + row % 2 * 2 + i % 2];
      const float share = share_of(score, call.probes.scale, lse);
      sums[i] += shared.positions[key_of_score(i)] < limit ? share : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kThreadKeys; ++i) {
    float sum = sums[i];
#pragma unroll
    for (int step = 4; step < kWarpThreads; step *= 2) {  // lanes of the same columns
      sum += __shfl_xor_sync(kFullWarp, sum, step);
    }
    if (threadIdx.x % kWarpThreads < 4) shared.shares[warp][key_of_score(i)] = sum;
  }
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kProductWarps; ++i) sum += shared.shares[i][threadIdx.x];
  return sum;
}

// Takes `mass` off a number that ends at 0, which other threads change too.
__device__ inline void subtract_from(int32_t* number, int32_t mass) {
  int32_t old = *number;
  while (old > 0) {
    const int32_t seen = atomicCAS(number, old, max(old - mass, 0));
    if (seen == old) return;
    old = seen;
  }
}

// The sum over all threads; thread 0 gets it.
__device__ inline uint64_t block_sum(uint64_t value, uint64_t* partials) {
#pragma unroll
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, step);
  }
  if (threadIdx.x % kWarpThreads == 0) partials[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  uint64_t sum = 0;
  for (int i = 0; i < kProductWarps; ++i) sum += partials[i];
  return sum;
}

// grid: query tiles of the rows, list heads.
__global__ void __launch_bounds__(kProductThreads, 2)
    subtract_columns_kernel(const __grid_constant__ SubtractCall call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  __shared__ uint64_t partials[kProductWarps];
  auto& shared = *reinterpret_cast<ProductShared*>(shared_bytes);
  const ProbeCall& probes = call.probes;
  const ProbeRun rows(probes);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto entry = static_cast<int32_t>(blockIdx.x);
  const auto list_head = static_cast<int32_t>(blockIdx.y);
  const int32_t first_kv_head = list_head * call.kv_heads_per_list;
  const int32_t num_usable = count_usable(call, rows, first_kv_head, entry);
  if (num_usable == 0) return;

  // The columns of the query tile's segment, and its masses.
  const int32_t q_tile = rows.first_q_tile + entry;
  const int32_t segment = q_tile * kMaskTileTokens / call.segment_tokens - call.first_segment;
  if (segment < 0 || segment >= call.num_segments) {
    if (thread == 0) fail_row(call.report, q_tile);
    return;
  }
  const int64_t list = static_cast<int64_t>(list_head) * call.num_segments + segment;
  const int32_t* positions = call.positions + list * call.max_columns;
  const int32_t count = call.count[list];
  const int64_t tile = static_cast<int64_t>(list_head) * probes.num_q_tiles + entry;
  int32_t* masses = call.masses + tile * call.num_kv_tiles;

  uint64_t own_mass = 0;  // of the thread's columns
  for (int32_t first = 0; first < count; first += kKeysAtOnce) {
    const int32_t column = first + thread;
    float share = 0.0f;
    for (int32_t h = 0; h < call.kv_heads_per_list; ++h) {
      const int64_t head = static_cast<int64_t>(segment) * call.num_kv_heads + first_kv_head + h;
      const uint16_t* key =
          call.kv + (head * 2 * call.max_columns + column) * static_cast<int64_t>(probes.head_dim);
      load_keys(probes, column < count ? key : nullptr, shared);
      shared.positions[thread] = column < count ? positions[column] : kNoToken;
      for (int32_t row = 0; row < probes.group * probes.rows_per_tile; row += kProductRows) {
        __syncwarp();  // the warp has read its probes before
        shared.probes[thread] = probe_of(call, rows, first_kv_head + h, entry, row + thread);
        float s[2][64] = {};
        multiply_probes(probes, shared, s);
        share += sum_shares(call, s, shared);
      }
    }
    if (column >= count) continue;
    const auto mass = static_cast<int32_t>(to_mass(share / static_cast<float>(num_usable)));
    own_mass += static_cast<uint64_t>(mass);
    subtract_from(masses + positions[column] / kMaskTileTokens, mass);
  }
  const uint64_t mass = block_sum(own_mass, partials);
  if (thread != 0) return;
  // Rounding may bring the sum of many columns above the whole.
  const uint64_t sum = static_cast<uint64_t>(call.column_mass[tile]) + mass;
  call.column_mass[tile] = static_cast<int32_t>(min(sum, static_cast<uint64_t>(kMassOne)));
}

}  // namespace

void CudaOps::subtract_columns(Stream& on, const SubtractColumnsArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const TileColumns& columns = args.columns;
  const auto num_lists = static_cast<int32_t>(columns.positions.dim(0));
  const auto num_kv_heads = static_cast<int32_t>(columns.kv.dim(1));
  SubtractCall call{.probes = probes_of(args, args.masses.lse, num_kv_heads),
                    .positions = columns.positions.data<int32_t>(),
                    .count = columns.count.data<int32_t>(),
                    .kv = reinterpret_cast<const uint16_t*>(columns.kv.bytes()),
                    .masses = args.masses.masses.data<int32_t>(),
                    .column_mass = args.masses.column_mass.data<int32_t>(),
                    .num_kv_heads = num_kv_heads,
                    .kv_heads_per_list = num_kv_heads / num_lists,
                    .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
                    .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
                    .segment_tokens = columns.segment_tokens,
                    .first_segment = columns.first_segment,
                    .num_kv_tiles = static_cast<int32_t>(args.masses.masses.dim(2))};
  check_key_width("subtract_columns", stream, call.probes.head_dim);
  check_column_product("subtract_columns", stream, call.probes.head_dim);
  if (columns.positions.num_elements() == 0) return;
  stream.submit("subtract_columns", [&](cudaStream_t handle) {
    call.report = stream.report("subtract_columns",
                                "query tile {} is in a segment without columns; give columns of "
                                "the segments of all rows");
    const size_t num_bytes = product_bytes(call.probes.head_dim);
    check_cuda(
        cudaFuncSetAttribute(subtract_columns_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(num_bytes)),
        "cudaFuncSetAttribute");
    const dim3 grid(static_cast<unsigned>(call.probes.num_q_tiles),
                    static_cast<unsigned>(num_lists));
    subtract_columns_kernel<<<grid, kProductThreads, num_bytes, handle>>>(call);
  });
}

}  // namespace sluice::cuda
