// Probe vectors of score_tiles, and the records that no product writes.
//
// Bound: reads of q, all of it for cells and pools. Tile: a warp per probe and query head, 16 bytes
// a lane. Thread rule: enqueue only.
#include "device/cuda/cuda_report.cuh"
#include "ops/cuda/tiles/score_call.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;

// -inf to the records of tiles of the run that the probe does not see, or does not visit.
__device__ inline void fill_unseen(const ScoreCall& call, const ScoreRun& run,
                                   const ProbeRows& rows, int64_t record) {
  const int32_t first_tile = run.kv_begin / kMaskTileTokens;
  const int32_t end_tile = (run.kv_end + kMaskTileTokens - 1) / kMaskTileTokens;
  const int32_t last_seen = (rows.limit - 1) / kMaskTileTokens;  // if the probe exists
  const int32_t begin = rows.exists() ? max(last_seen + 1, first_tile) : first_tile;
  float* records = call.records + record * call.num_kv_tiles;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  for (int32_t j = begin + lane; j < end_tile; j += kWarpThreads) records[j] = -INFINITY;
  if (call.visits == nullptr) return;
  const auto kv_head = static_cast<int32_t>(record / call.num_probes) / call.group;
  const auto entry = static_cast<int32_t>(record % call.num_probes) / call.per_tile;
  for (int32_t j = first_tile + lane; j < min(begin, end_tile); j += kWarpThreads) {
    if (!visits(call, kv_head, entry, j)) records[j] = -INFINITY;
  }
}

// grid: probes of all query heads, a warp each.
__global__ void __launch_bounds__(kWarps* kWarpThreads)
    probe_vectors_kernel(const __grid_constant__ ScoreCall call) {
  const int64_t index =
      static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int64_t>(threadIdx.x / kWarpThreads);
  if (index >= static_cast<int64_t>(call.num_q_heads) * call.num_probes) return;
  const auto q_head = static_cast<int32_t>(index / call.num_probes);
  const auto probe = static_cast<int32_t>(index % call.num_probes);
  const ScoreRun run(call);
  if (index == 0 && threadIdx.x == 0 && run.kv_end < *call.kv_end) {
    fail_row(call.report, call.num_kv_tiles);
  }
  const ProbeRows rows = rows_of(call, run, probe);
  fill_unseen(call, run, rows, index);
  if (!rows.exists()) return;

  const int64_t row_elements = static_cast<int64_t>(call.num_q_heads) * call.head_dim;
  const uint16_t* first = call.q + (rows.begin - run.first_pos + call.row_begin[0]) * row_elements +
                          static_cast<int64_t>(q_head) * call.head_dim;
  uint16_t* to = call.vectors + index * call.width;
  const int32_t row_pieces = call.head_dim / 8;  // of 16 bytes
  for (int32_t piece = threadIdx.x % kWarpThreads; piece < call.width / 8; piece += kWarpThreads) {
    Bf16x8 eight = {};
    const uint16_t* from = first + piece % row_pieces * 8;
    if (call.probes.kind == TileProbeKind::kPooled) {
      eight = pool_eight(call.probes.pools_maxima, rows.end - rows.begin,
                         [&](int32_t i) { return from + i * row_elements; });
    } else {
      // Key token t of a cell meets the row that lies as far from the cell's end. A row probe is
      // its own cell.
      const int32_t row = call.width / call.head_dim - 1 - piece / row_pieces;
      if (row < rows.end - rows.begin) {
        eight = *reinterpret_cast<const Bf16x8*>(from + row * row_elements);
      }
    }
    *reinterpret_cast<Bf16x8*>(to + static_cast<int64_t>(piece) * 8) = eight;
  }
}

}  // namespace

cudaError_t launch_probe_vectors(cudaStream_t stream, const ScoreCall& call) {
  const int64_t num_warps = static_cast<int64_t>(call.num_q_heads) * call.num_probes;
  const auto num_blocks = static_cast<unsigned>((num_warps + kWarps - 1) / kWarps);
  probe_vectors_kernel<<<num_blocks, kWarps * kWarpThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace sluice::cuda
