// The kernel of score_tiles for antidiagonal cells on Hopper: a matrix product of packed rows and
// key cells, `width` = stride * head_dim elements long, with an epilogue that makes records.
//
// Bound: tensor-core FLOP/s; next, the rate of the L2, since a step of 64 elements multiplies 256
// rows by 128 cells. Two CTAs with neighbouring groups of cells are therefore a cluster: each
// copies half of the rows to both. A producer thread fills stages by the copy engine, two consumer
// warpgroups multiply 128 rows each. Compiled for sm_90a only. Thread rule: enqueue only.
#include <numeric>

#include "ops/cuda/attention/kv_tensor_map.h"
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/tiles/score_kernel.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda {
namespace {

using tiles::kKeysAtOnce;
using tiles::kStepElements;
using tiles::RowPlace;

constexpr int kStages = 4;
constexpr int kClusterSize = 2;
constexpr int kNumConsumers = 2;  // warpgroups
constexpr int kGroupRows = 128;   // rows of a consumer, at most
constexpr int kNumThreads = 128 * (1 + kNumConsumers);
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 232;
constexpr int kRowBytes = kStepElements * 2;  // of a step
constexpr int kSmallestBox = 8;               // cells: the unit of the swizzle
constexpr int32_t kMaxTurns = 2;              // blocks of rows of a CTA

struct alignas(1024) CellStages {
  std::byte rows[kStages][kNumConsumers][kGroupRows * kRowBytes];
  std::byte cells[kStages][kKeysAtOnce * kRowBytes];
  uint64_t full[kStages], empty[kStages];
};

// The parameters beside ScoreCall.
struct CellMaps {
  CUtensorMap rows;   // [kv_head][probe][head of the group][element]
  CUtensorMap cells;  // [block][kv_head, K or V][cell][element]
  int32_t box_cells = 0;
};

// What a cluster does: two groups of cells, and blocks of rows that begin num_splits blocks apart.
// Rows are packed: a consumer has whole probes, `half_rows` rows.
struct CellWork {
  int32_t kv_head;
  int32_t first_token;  // of this CTA's cells
  int32_t half_rows;
  int32_t first_row;  // the first that sees the cluster's first tile
  int32_t end_row;
  int32_t row_stride;

  __device__ CellWork(const ScoreCall& call, const ScoreRun& run, int32_t group_tokens,
                      int32_t num_pairs) {
    kv_head = static_cast<int32_t>(blockIdx.z) / num_pairs;
    const int32_t pair = static_cast<int32_t>(blockIdx.z) % num_pairs;
    const int32_t pair_token = run.kv_begin + pair * kClusterSize * group_tokens;
    first_token = pair_token + static_cast<int32_t>(blockIdx.x) * group_tokens;
    half_rows = kGroupRows / call.group * call.group;
    first_row = first_probe_of(call, run, pair_token) * call.group +
                static_cast<int32_t>(blockIdx.y) * kNumConsumers * half_rows;
    end_row = pair_token < run.kv_end ? num_existing_probes(call, run) * call.group : 0;
    row_stride = call.num_splits * kNumConsumers * half_rows;
  }
};

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of both CTAs; earlier accesses of any are visible to all.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// One arrival at the same barrier of CTA `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// copy_box to the same place of both CTAs; bytes count on the barrier of each.
__device__ __forceinline__ void copy_box_to_both(uint32_t destination, const CUtensorMap* map,
                                                 uint32_t barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w),
      "h"(static_cast<uint16_t>((1 << kClusterSize) - 1))
      : "memory");
}

// Where a box of the CTA's cells lies. Cells that no token fills lie in the run's first block: what
// they hold is not visible.
struct CellBox {
  int32_t block;
  int32_t first_cell;  // in the block

  template <int kKeyTokens>
  __device__ static CellBox of(const ScoreCall& call, const ScoreRun& run, const CellWork& work,
                               int32_t first) {
    const int32_t token = work.first_token + first * kKeyTokens;
    const int32_t offset = token < run.kv_end ? token - run.kv_begin : 0;
    return {call.block_table[offset / call.block_tokens], offset % call.block_tokens / kKeyTokens};
  }
};

// Fills stages: steps of all blocks of rows, one after the other. One warp: the first lane brings
// the rows, and each of the first lanes a box of cells, since one thread would take longer to ask
// for them than the product takes.
template <int kKeyTokens>
__device__ void produce(const ScoreCall& call, const ScoreRun& run, const CellMaps& maps,
                        const CellWork& work, CellStages& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const uint32_t rank = cluster_rank();
  const bool has_box = lane < kKeysAtOnce / maps.box_cells;
  const int32_t first_cell = has_box ? lane * maps.box_cells : 0;
  const CellBox box = CellBox::of<kKeyTokens>(call, run, work, first_cell);
  const uint32_t num_bytes = (kNumConsumers * work.half_rows + kKeysAtOnce) * kRowBytes;
  int stage = 0;
  uint32_t parity = 1;  // of the phase before the first, which counts as over
  for (int32_t row = work.first_row; row < work.end_row; row += work.row_stride) {
    const int32_t probe = (row + static_cast<int32_t>(rank) * work.half_rows) / call.group;
    for (int32_t element = 0; element < call.width; element += kStepElements) {
      const uint32_t full = shared_address(&shared.full[stage]);
      barrier_wait(shared_address(&shared.empty[stage]), parity);
      if (lane == 0) {
        barrier_arrive_expecting(full, num_bytes);
        copy_box_to_both(shared_address(shared.rows[stage][rank]), &maps.rows, full, element, 0,
                         probe, work.kv_head);
      }
      if (has_box) {
        copy_box(shared_address(shared.cells[stage]) + first_cell * kRowBytes, &maps.cells, full,
                 element, box.first_cell, call.lines_per_head * work.kv_head, box.block);
      }
      stage = (stage + 1) % kStages;
      if (stage == 0) parity ^= 1;
    }
  }
}

// The cell that kv_end cuts, if the CTA has it: its tokens from kv_end on count as 0, and the cache
// may hold anything there.
struct CutCell {
  int32_t index = -1;      // among the CTA's cells
  int32_t num_tokens = 0;  // that exist

  template <int kKeyTokens>
  __device__ static CutCell of(const ScoreRun& run, const CellWork& work) {
    const int32_t visible = run.kv_end - work.first_token;
    if (visible <= 0 || visible >= kKeysAtOnce * kKeyTokens || visible % kKeyTokens == 0) return {};
    return {visible / kKeyTokens, visible % kKeyTokens};
  }
};

// Overwrites the cut cell's elements of a step by 0; the threads of a consumer. Both consumers
// write, each before its own product.
__device__ __forceinline__ void clear_cut(const CutCell& cut, int32_t token, int consumer,
                                          std::byte* cells) {
  if (cut.index < 0 || token < cut.num_tokens) return;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  if (thread < kRowBytes / 16) {
    *reinterpret_cast<uint4*>(cells + cut.index * kRowBytes + thread * 16) = uint4{};
    shared_write_fence();
  }
  named_barrier_sync(1 + consumer, 128);
}

// s (+)= rows cells^T of a step.
__device__ __forceinline__ void multiply_step(const std::byte* rows, const std::byte* cells,
                                              bool adds, float (&s)[2][64]) {
  const uint64_t cell_matrix = matrix_descriptor(shared_address(cells), 16, kSwizzleUnitBytes);
  pin_registers(s[0]);
  pin_registers(s[1]);
  wgmma_fence();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const uint64_t row_matrix =
        matrix_descriptor(shared_address(rows + m * 64 * kRowBytes), 16, kSwizzleUnitBytes);
#pragma unroll
    for (int k = 0; k < kStepElements / 16; ++k) {
      wgmma_scores(s[m], advanced(row_matrix, 32 * k), advanced(cell_matrix, 32 * k),
                   adds || k > 0);
    }
  }
  wgmma_commit();
}

// Makes the records of a consumer's rows from `first_row` on.
template <int kTileKeys>
__device__ __forceinline__ void write_rows(const ScoreCall& call, const ScoreRun& run,
                                           const CellWork& work, int32_t first_row,
                                           float (&s)[2][64]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads % 4;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    RowPlace places[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t own = m * 64 + warp * 16 + r * 8 + lane / 4;
      const int32_t row = first_row + own;
      if (own < work.half_rows && row < work.end_row) {
        const int32_t probe = row / call.group;
        const int32_t head = work.kv_head * call.group + row % call.group;
        places[r] = {head * call.num_probes + probe, rows_of(call, run, probe).limit};
      }
    }
    tiles::write_records<kTileKeys>(call, run, places, work.first_token, s[m]);
  }
}

// A consumer warpgroup: products of all steps, and the records.
template <int kTileKeys>
__device__ __forceinline__ void consume(const ScoreCall& call, const ScoreRun& run,
                                        const CellWork& work, CellStages& shared, int consumer) {
  const bool releases = threadIdx.x % kWarpThreads < kClusterSize;  // a lane for each CTA
  const uint32_t released_rank = threadIdx.x % kWarpThreads;
  const auto release = [&](int stage) {
    if (releases) barrier_arrive_at(shared_address(&shared.empty[stage]), released_rank);
  };
  const CutCell cut = CutCell::of<kMaskTileTokens / kTileKeys>(run, work);
  int stage = 0;
  uint32_t parity = 0;
  for (int32_t row = work.first_row; row < work.end_row; row += work.row_stride) {
    float s[2][64];
    for (int32_t element = 0; element < call.width; element += kStepElements) {
      barrier_wait(shared_address(&shared.full[stage]), parity);
      clear_cut(cut, element / call.head_dim, consumer, shared.cells[stage]);
      multiply_step(shared.rows[stage][consumer], shared.cells[stage], element > 0, s);
      wgmma_wait<1>();
      if (element > 0) release((stage + kStages - 1) % kStages);
      stage = (stage + 1) % kStages;
      if (stage == 0) parity ^= 1;
    }
    wgmma_wait<0>();
    pin_registers(s[0]);
    pin_registers(s[1]);
    release((stage + kStages - 1) % kStages);
    write_rows<kTileKeys>(call, run, work, row + consumer * work.half_rows, s);
  }
}

// grid: the two CTAs of a cluster, blocks that share the rows of a group, pairs of groups of all KV
// heads. Clusters that run together share rows or cells.
template <int kTileKeys>
__global__ void __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kNumThreads, 1)
    score_cells_hopper(const __grid_constant__ ScoreCall call,
                       const __grid_constant__ CellMaps maps, int32_t num_pairs) {
  constexpr int kKeyTokens = kMaskTileTokens / kTileKeys;
  extern __shared__ std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<CellStages*>(shared_bytes + (0u - shared_address(shared_bytes)) %
                                                                   alignof(CellStages));
  const ScoreRun run(call);
  const CellWork work(call, run, kKeysAtOnce * kKeyTokens, num_pairs);
  if (work.first_row >= work.end_row) return;  // the whole cluster

  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), kClusterSize * kNumConsumers * 4);
    }
    barrier_init_fence();
  }
  cluster_sync();
  // The shuffle tells the compiler that the value is uniform in a warp.
  const int warpgroup = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x < kWarpThreads) produce<kKeyTokens>(call, run, maps, work, shared);
  } else {
    take_registers<kConsumerRegisters>();
    consume<kTileKeys>(call, run, work, shared, warpgroup - 1);
  }
  cluster_sync();  // neither CTA ends while the other may write to it
}

int32_t cells_of_box(const ScoreCall& call) {
  return std::gcd(call.block_tokens / call.probes.stride, kKeysAtOnce);
}

CellMaps make_maps(const ScoreCall& call) {
  const auto row_bytes = static_cast<int64_t>(call.width) * 2;
  return {.rows = make_tensor_map(
              call.vectors, {call.width, call.group, call.num_probes, call.num_kv_heads},
              {row_bytes * call.num_probes, row_bytes, row_bytes * call.num_probes * call.group},
              {kStepElements, call.group, kGroupRows / call.group, 1}),
          // A block of `block_tokens` keys is one of cells, which lie side by side.
          .cells = make_key_map(call, call.width, cells_of_box(call)),
          .box_cells = cells_of_box(call)};
}

template <int kTileKeys>
cudaError_t launch_stride(cudaStream_t stream, const ScoreCall& call, size_t num_bytes) {
  const cudaError_t status = cudaFuncSetAttribute(score_cells_hopper<kTileKeys>,
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(num_bytes));
  if (status != cudaSuccess) return status;
  constexpr int kClusterTiles = kClusterSize * kKeysAtOnce / kTileKeys;
  const int32_t num_pairs = (call.num_run_tiles + kClusterTiles - 1) / kClusterTiles;
  const dim3 grid(kClusterSize, static_cast<unsigned>(call.num_splits),
                  static_cast<unsigned>(num_pairs * call.num_kv_heads));
  score_cells_hopper<kTileKeys>
      <<<grid, kNumThreads, num_bytes, stream>>>(call, make_maps(call), num_pairs);
  return cudaGetLastError();
}

ScoreShape shape(const ScoreCall& call) {
  return {.tiles_at_once = kKeysAtOnce * call.probes.stride / kMaskTileTokens,
          .rows_at_once = kNumConsumers * (kGroupRows / call.group) * call.group,
          .shared_bytes = sizeof(CellStages) + alignof(CellStages),
          .max_turns = kMaxTurns};
}

template <int kTileKeys>
struct Stride {
  static constexpr int kValue = kTileKeys;
};

cudaError_t launch(cudaStream_t stream, const ScoreCall& call) {
  return tiles::with_stride<Stride>(call, [&](auto stride) {
    return launch_stride<decltype(stride)::kValue>(stream, call, shape(call).shared_bytes);
  });
}

}  // namespace

ScoreKernel score_hopper_cells_kernel() {
  return {.fits =
              [](const ScoreCall& call) {
                return call.head_dim % kStepElements == 0 && call.group <= kGroupRows &&
                       cells_of_box(call) % kSmallestBox == 0;
              },
          .shape = shape,
          .launch = launch};
}

}  // namespace sluice::cuda
