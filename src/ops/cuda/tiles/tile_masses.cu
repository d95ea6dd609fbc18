// tile_masses on CUDA: a block of threads for each list head and query tile.
//
// Masses are added up where they end, in global memory: a thread reads and writes its own tiles.
// Compiled without contraction (tiles/masses.cuh). Thread rule: enqueue only.
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/masses.cuh"

namespace sluice::cuda {
namespace {

// TileMassesArgs as plain pointers and sizes.
struct MassesCall {
  RecordsCall records;
  const int32_t* row_begin;
  const int32_t* first_pos;
  uint32_t* masses;      // [num_list_heads][num_entries][num_kv_tiles]
  int32_t* column_mass;  // [num_list_heads][num_entries]
  int32_t first_q_tile;  // of the rows
  int32_t num_entries;
  CudaReport report;
};

// grid: query tiles, from the last, which see most, to the first; then list heads.
__global__ void __launch_bounds__(kMassThreads) tile_masses_kernel(const MassesCall call) {
  __shared__ ProbeSums probes;
  const auto entry = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x);
  const auto list_head = static_cast<int32_t>(blockIdx.y);
  const int64_t list = static_cast<int64_t>(list_head) * call.num_entries + entry;
  const int32_t num_kv_tiles = call.records.num_kv_tiles;
  uint32_t* masses = call.masses + list * num_kv_tiles;
  const int32_t q_tile = call.first_q_tile + entry;
  const int32_t end_pos = *call.first_pos + call.row_begin[1] - call.row_begin[0];
  const bool exists = q_tile * kMaskTileTokens < end_pos;
  if (exists && q_tile >= num_kv_tiles && threadIdx.x == 0) fail_row(call.report, q_tile);
  const int32_t num_visible = exists && q_tile < num_kv_tiles ? q_tile + 1 : 0;
  if (num_visible > 0) {
    find_masses(call.records, list_head, entry, num_visible, probes, masses);
  }
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t j = num_visible + thread; j < num_kv_tiles; j += kMassThreads) masses[j] = 0;
  if (thread == 0) call.column_mass[list] = 0;
}

}  // namespace

void CudaOps::tile_masses(Stream& on, const TileMassesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const TensorView& masses = args.out.masses;
  MassesCall call{
      .records = {.records = args.records.data<float>(),
                  .lse = args.out.lse.data<float>(),
                  .per_tile = args.probes_per_tile,
                  .num_probes = static_cast<int32_t>(args.records.dim(1)),
                  .num_kv_tiles = static_cast<int32_t>(args.records.dim(2)),
                  .heads_per_list = static_cast<int32_t>(args.records.dim(0) / masses.dim(0)),
                  .heads = {}},
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .masses = reinterpret_cast<uint32_t*>(masses.data<int32_t>()),
      .column_mass = args.out.column_mass.data<int32_t>(),
      .first_q_tile = args.first_q_tile + args.rows.first / kMaskTileTokens,
      .num_entries = args.rows.num_q_tiles()};
  stream.submit("tile_masses", [&](cudaStream_t handle) {
    call.report = stream.report("tile_masses",
                                "query tile {} lies beyond the records; make records of all KV "
                                "tiles up to the last row");
    const dim3 grid(static_cast<unsigned>(call.num_entries), static_cast<unsigned>(masses.dim(0)));
    tile_masses_kernel<<<grid, kMassThreads, 0, handle>>>(call);
  });
}

}  // namespace sluice::cuda
