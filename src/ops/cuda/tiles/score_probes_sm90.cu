// The kernel of score_tiles for true rows of query tiles on Hopper: probes stay, keys stream.
//
// Bound: exponentials and products alike, as in tiles/score_columns_sm90.cu, and with visits the
// loads of keys. A first kernel packs the probes of a block of query tiles, up to 448 rows, in the
// layout of shared memory. They stay there while a producer warp brings a KV tile at a time by the
// copy engine, with the list of the block's query tiles that visit it. Three consumer warpgroups
// take 64 of the listed rows in turn: ldmatrix gathers them from wherever they lie, and wgmma reads
// them from registers. A record is a function of its row and its tile alone. Compiled for sm_90a
// only. Thread rule: enqueue only.
#include <algorithm>
#include <numeric>

#include "ops/cuda/attention/kv_tensor_map.h"
#include "ops/cuda/attention/prefill/sm80.cuh"
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/tiles/score_kernel.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda {
namespace {

using tiles::kKeysAtOnce;
using tiles::kStepElements;
using tiles::kStepPieces;
using tiles::Panel;
using tiles::piece_of;
using tiles::RowPlace;

constexpr int kMaxRows = 448;    // of a block of query tiles
constexpr int kMaxEntries = 32;  // query tiles of a block: a lane each
constexpr int kItemRows = 64;    // of a product
constexpr int kStages = 3;       // KV tiles
constexpr int kNumConsumers = 3;
constexpr int kNumThreads = 128 * (1 + kNumConsumers);
constexpr int kProducerRegisters = 40;
constexpr int kConsumerRegisters = 152;
constexpr int kPackThreads = 256;
constexpr int kTilesAhead = 4;   // whose visits the producer reads at once
constexpr int kSmallestBox = 8;  // keys: the unit of the swizzle
// A quotient is exact if numerator x denominator is below 2^kInverseBits, and a product of both
// factors fits 32 bits.
constexpr int kInverseBits = 20;
static_assert(kMaxRows * kMaxRows < 1 << kInverseBits && kMaxRows < 1 << (32 - kInverseBits));

// The rows of a block of query tiles as they are in shared memory: kPanels times 64 elements.
template <int kPanels>
struct PackedRows {
  Panel<kMaxRows> vectors[kPanels];
  RowPlace places[kMaxRows];  // those of rows that do not exist have limit 0
};

// The parameters beside ScoreCall.
template <int kPanels>
struct BlockCall {
  CUtensorMap keys;  // [block][kv_head, K or V][token][element]
  int32_t box_tokens;
  int32_t tile_rows;            // packed rows of a query tile
  uint32_t tile_rows_inverse;   // of visitor_of
  int32_t entries_per_block;    // query tiles
  PackedRows<kPanels>* packed;  // [num_kv_heads][blocks of the round]
  int32_t first_block;          // of the round
  int32_t round_blocks;

  // Of a CTA or of a block of packing threads. Later rows see more keys: the longest CTAs begin
  // first, so that short ones fill the gaps at the end.
  __device__ int32_t own_block() const {
    return round_blocks - 1 - static_cast<int32_t>(blockIdx.y);
  }
  __device__ int32_t first_entry() const { return (first_block + own_block()) * entries_per_block; }
  __device__ PackedRows<kPanels>& own() const {
    return packed[static_cast<int32_t>(blockIdx.z) * round_blocks + own_block()];
  }
  // row / tile_rows, exact for rows below kMaxRows.
  __device__ int32_t visitor_of(int32_t row) const {
    return static_cast<int32_t>(static_cast<uint32_t>(row) * tile_rows_inverse >> kInverseBits);
  }
};

// Packs rows, a thread for each 16 bytes. grid: rows of a block of query tiles, blocks of the
// round, KV heads.
template <int kPanels>
__global__ void __launch_bounds__(kPackThreads)
    pack_rows(const __grid_constant__ ScoreCall call,
              const __grid_constant__ BlockCall<kPanels> blocks) {
  constexpr int kPieces = kPanels * kStepPieces;
  const auto index = static_cast<int32_t>(blockIdx.x * kPackThreads + threadIdx.x);
  const int32_t row = index / kPieces;
  const int32_t piece = index % kPieces;
  if (row >= blocks.entries_per_block * blocks.tile_rows) return;
  const ScoreRun run(call);
  const int32_t packed_row = blocks.first_entry() * blocks.tile_rows + row;
  const int32_t probe = packed_row / call.group;
  const int32_t head = static_cast<int32_t>(blockIdx.z) * call.group + packed_row % call.group;
  const bool exists = probe < num_existing_probes(call, run);
  const int32_t record = exists ? head * call.num_probes + probe : 0;
  PackedRows<kPanels>& to = blocks.own();
  Bf16x8 eight = {};
  if (exists) {
    eight = *reinterpret_cast<const Bf16x8*>(call.vectors +
                                             static_cast<int64_t>(record) * call.width + piece * 8);
  }
  Panel<kMaxRows>& panel = to.vectors[piece / kStepPieces];
  *reinterpret_cast<Bf16x8*>(piece_of(panel, row, piece % kStepPieces)) = eight;
  if (piece == 0) to.places[row] = {record, exists ? rows_of(call, run, probe).limit : 0};
}

// What the producer says of a KV tile.
struct TileVisitors {
  int32_t first_token;
  int32_t count;  // query tiles that visit it; 0: there is no further KV tile
  uint8_t entries[kMaxEntries];
};

template <int kPanels>
struct alignas(1024) Shared {
  PackedRows<kPanels> rows;
  alignas(1024) Panel<kKeysAtOnce> keys[kStages][kPanels];
  TileVisitors visitors[kStages];
  uint64_t has_rows, full[kStages], empty[kStages];
};

// ---- Producer ----------------------------------------------------------------------------------

template <int kPanels>
__device__ __forceinline__ void bring_rows(const BlockCall<kPanels>& blocks,
                                           Shared<kPanels>& shared) {
  const PackedRows<kPanels>& from = blocks.own();
  const uint32_t barrier = shared_address(&shared.has_rows);
  const auto num_rows = static_cast<uint32_t>(blocks.entries_per_block * blocks.tile_rows);
  // Whole units of 16 bytes: a place has 8.
  const uint32_t place_bytes = (num_rows + 1) / 2 * 2 * sizeof(RowPlace);
  const uint32_t panel_bytes = num_rows * sizeof(from.vectors[0][0]);
  barrier_arrive_expecting(barrier, kPanels * panel_bytes + place_bytes);
  for (int i = 0; i < kPanels; ++i) {
    copy_bytes(shared_address(shared.rows.vectors[i]), from.vectors[i], panel_bytes, barrier);
  }
  copy_bytes(shared_address(shared.rows.places), from.places, place_bytes, barrier);
}

// A KV tile for a lane of the producer.
struct TileOfLane {
  int32_t first_token;
  bool is_visited;  // by query tile `lane` of the block
  int32_t block;    // of the lane's box of keys
};

// Fills the next stage with a KV tile; without visitors it says that there is none.
template <int kPanels>
__device__ __forceinline__ void fill_stage(const ScoreCall& call, const ScoreRun& run,
                                           const BlockCall<kPanels>& blocks, const TileOfLane& tile,
                                           int32_t index, Shared<kPanels>& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.z);
  const int stage = index % kStages;
  const uint32_t full = shared_address(&shared.full[stage]);
  const uint32_t visitors = __ballot_sync(kFullWarp, tile.is_visited);
  // The phase before the first counts as over.
  barrier_wait(shared_address(&shared.empty[stage]), index / kStages % 2 == 0 ? 1 : 0);
  TileVisitors& out = shared.visitors[stage];
  if (tile.is_visited) {
    out.entries[__popc(visitors & ((1u << lane) - 1))] = static_cast<uint8_t>(lane);
  }
  if (lane == 0) {
    out.first_token = tile.first_token;
    out.count = __popc(visitors);
  }
  // Every lane arrives, so that consumers see what it has written. One arrival after __syncwarp
  // would do, but racecheck does not follow that order. Cost: 31 arrivals a stage.
  if (visitors == 0) {
    barrier_arrive(full);
    return;
  }
  if (lane == 0) {
    barrier_arrive_expecting(full, sizeof(shared.keys[0]));
  } else {
    barrier_arrive(full);
  }
  const int32_t first_key = lane / kPanels * blocks.box_tokens;
  const int32_t panel = lane % kPanels;
  const int32_t position = tile.first_token + first_key;
  if (first_key < kKeysAtOnce) {
    copy_box(shared_address(shared.keys[stage][panel][first_key]), &blocks.keys, full,
             panel * kStepElements, position < run.kv_end ? position % call.block_tokens : 0,
             call.lines_per_head * kv_head, tile.block);
  }
}

// One warp: brings the rows once, then every gridDim.x-th KV tile of the run that a query tile of
// the block visits. Keys that do not exist come from the run's first block: no row sees them.
template <int kPanels>
__device__ void produce(const ScoreCall& call, const ScoreRun& run,
                        const BlockCall<kPanels>& blocks, Shared<kPanels>& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.z);
  if (lane == 0) bring_rows(blocks, shared);
  const int32_t entry = blocks.first_entry() + lane;
  const bool is_mine =
      lane < blocks.entries_per_block && entry * call.per_tile < num_existing_probes(call, run);
  const int32_t first_key = lane / kPanels * blocks.box_tokens;  // of the lane's box
  const int32_t last_tile = run.first_q_tile + blocks.first_entry() + blocks.entries_per_block - 1;
  const int32_t end_token = min(run.kv_end, (last_tile + 1) * kMaskTileTokens);
  const int32_t stride = static_cast<int32_t>(gridDim.x) * kMaskTileTokens;
  int32_t index = 0;
  for (int32_t first = run.kv_begin + static_cast<int32_t>(blockIdx.x) * kMaskTileTokens;
       first < end_token; first += kTilesAhead * stride) {
    TileOfLane ahead[kTilesAhead];
#pragma unroll
    for (int i = 0; i < kTilesAhead; ++i) {
      const int32_t token = first + i * stride;
      const int32_t kv_tile = token / kMaskTileTokens;
      bool is_visited = is_mine && token < end_token && kv_tile <= run.first_q_tile + entry;
      if (is_visited && call.visits != nullptr) {
        is_visited = visits(call, kv_head, entry, kv_tile);
      }
      const int32_t position = token + first_key;
      const bool exists = token < end_token && position < run.kv_end;
      const int32_t block = exists ? (position - run.kv_begin) / call.block_tokens : 0;
      ahead[i] = {token, is_visited, call.block_table[block]};
    }
#pragma unroll
    for (int i = 0; i < kTilesAhead; ++i) {
      if (__any_sync(kFullWarp, ahead[i].is_visited)) {
        fill_stage(call, run, blocks, ahead[i], index++, shared);
      }
    }
  }
  fill_stage(call, run, blocks, {}, index, shared);
}

// ---- Consumers ---------------------------------------------------------------------------------

// Where the row of a KV tile's visitors lies among the rows of the block: `row` counts the rows of
// the listed query tiles. -1: there is none.
template <int kPanels>
__device__ __forceinline__ int32_t row_of_visitors(const BlockCall<kPanels>& blocks,
                                                   const TileVisitors& visitors, int32_t row) {
  const int32_t visitor = blocks.visitor_of(row);
  if (visitor >= visitors.count) return -1;
  return (visitors.entries[visitor] - visitor) * blocks.tile_rows + row;
}

// s = rows keys^T of 64 rows, of which the lane names one of its warp's 16.
template <int kPanels>
__device__ __forceinline__ void multiply(Panel<kMaxRows> (&vectors)[kPanels], int32_t row,
                                         const Panel<kKeysAtOnce> (&keys)[kPanels],
                                         float (&s)[64]) {
  const int lane = threadIdx.x % kWarpThreads;
  uint32_t a[4 * kPanels][4];
#pragma unroll
  for (int i = 0; i < 4 * kPanels; ++i) {
    sm80::load_matrices(piece_of(vectors[i / 4], row, i % 4 * 2 + lane / 16), a[i]);
  }
  pin_registers(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4 * kPanels; ++i) {
    const uint64_t matrix = matrix_descriptor(shared_address(keys[i / 4]), 16, kSwizzleUnitBytes);
    wgmma_scores(s, a[i], advanced(matrix, 32 * (i % 4)), i > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin_registers(s);
}

// The records of 64 rows, from the first_row-th of the visitors on.
template <int kPanels>
__device__ __forceinline__ void score_item(const ScoreCall& call, const ScoreRun& run,
                                           const BlockCall<kPanels>& blocks, int32_t first_row,
                                           int stage, Shared<kPanels>& shared) {
  const TileVisitors& visitors = shared.visitors[stage];
  const int lane = threadIdx.x % kWarpThreads;
  const int32_t first_of_warp =
      first_row + static_cast<int32_t>(threadIdx.x) % 128 / kWarpThreads * 16;
  const int32_t row = row_of_visitors(blocks, visitors, first_of_warp + lane % 16);
  RowPlace places[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // The lane that names the row knows where it lies.
    const int32_t own = __shfl_sync(kFullWarp, row, lane / 4 + 8 * r);
    if (own >= 0) places[r] = shared.rows.places[own];
  }
  float s[64];
  multiply<kPanels>(shared.rows.vectors, max(row, 0), shared.keys[stage], s);
  tiles::write_records<kMaskTileTokens>(call, run, places, visitors.first_token, s);
}

// A consumer warpgroup: every third 64 rows of all KV tiles.
template <int kPanels>
__device__ void consume(const ScoreCall& call, const ScoreRun& run,
                        const BlockCall<kPanels>& blocks, int consumer, Shared<kPanels>& shared) {
  barrier_wait(shared_address(&shared.has_rows), 0);
  int32_t turn = 0;  // whose the next rows are
  for (int32_t index = 0;; ++index) {
    const int stage = index % kStages;
    barrier_wait(shared_address(&shared.full[stage]), index / kStages % 2);
    const int32_t num_rows = shared.visitors[stage].count * blocks.tile_rows;
    if (num_rows == 0) return;
    for (int32_t first_row = 0; first_row < num_rows; first_row += kItemRows) {
      if (turn == consumer) score_item(call, run, blocks, first_row, stage, shared);
      turn = turn + 1 == kNumConsumers ? 0 : turn + 1;
    }
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) barrier_arrive(shared_address(&shared.empty[stage]));
  }
}

// grid: CTAs that share the KV tiles of the run, blocks of query tiles, KV heads.
template <int kPanels>
__global__ void __launch_bounds__(kNumThreads, 1)
    score_probes_hopper(const __grid_constant__ ScoreCall call,
                        const __grid_constant__ BlockCall<kPanels> blocks) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<Shared<kPanels>*>(
      shared_bytes + (0u - shared_address(shared_bytes)) % alignof(Shared<kPanels>));
  const ScoreRun run(call);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.has_rows), 1);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.full[i]), kWarpThreads);
      barrier_init(shared_address(&shared.empty[i]), kNumConsumers * 4);  // warps
    }
    barrier_init_fence();
  }
  __syncthreads();
  // The shuffle tells the compiler that the value is uniform in a warp.
  const int warpgroup = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 128, 0);
  if (warpgroup == 0) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x < kWarpThreads) produce<kPanels>(call, run, blocks, shared);
  } else {
    take_registers<kConsumerRegisters>();
    consume<kPanels>(call, run, blocks, warpgroup - 1, shared);
  }
}

// ---- Launch ------------------------------------------------------------------------------------

int32_t box_tokens_of(const ScoreCall& call) { return std::gcd(call.block_tokens, kKeysAtOnce); }

// By what all windows of rows share, since records must not depend on the window.
bool fits(const ScoreCall& call) {
  return call.probes.kind == TileProbeKind::kRows && call.segment_tokens == 0 &&
         (call.head_dim == 64 || call.head_dim == 128) && call.per_tile * call.group <= kMaxRows &&
         box_tokens_of(call) % kSmallestBox == 0 &&
         static_cast<size_t>(call.num_kv_heads) * sizeof(PackedRows<2>) <= call.scratch_bytes;
}

template <int kPanels>
size_t shared_bytes_of() {
  return sizeof(Shared<kPanels>) + alignof(Shared<kPanels>);
}

ScoreShape shape(const ScoreCall& call) {
  return {.tiles_at_once = 1,
          .rows_at_once = kItemRows,
          .shared_bytes = call.head_dim == 64 ? shared_bytes_of<1>() : shared_bytes_of<2>()};
}

template <int kPanels>
BlockCall<kPanels> make_blocks(const ScoreCall& call) {
  const int32_t tile_rows = call.per_tile * call.group;
  const int32_t num_entries = call.num_probes / call.per_tile;
  const int32_t most = std::min(kMaxRows / tile_rows, kMaxEntries);
  const int32_t num_blocks = (num_entries + most - 1) / most;
  return {.keys = make_key_map(call, call.head_dim, box_tokens_of(call)),
          .box_tokens = box_tokens_of(call),
          .tile_rows = tile_rows,
          .tile_rows_inverse =
              ((1u << kInverseBits) + static_cast<uint32_t>(tile_rows) - 1) / tile_rows,
          .entries_per_block = (num_entries + num_blocks - 1) / num_blocks,
          .packed = reinterpret_cast<PackedRows<kPanels>*>(call.scratch)};
}

template <int kPanels>
cudaError_t launch_width(cudaStream_t stream, const ScoreCall& call) {
  // Each CTA brings rows of its own: few CTAs, but enough of them to end at about the same time.
  constexpr int32_t kCtasPerProcessor = 4;
  const size_t num_bytes = shared_bytes_of<kPanels>();
  const cudaError_t status = cudaFuncSetAttribute(score_probes_hopper<kPanels>,
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(num_bytes));
  if (status != cudaSuccess) return status;
  BlockCall<kPanels> blocks = make_blocks<kPanels>(call);
  const int32_t num_entries = call.num_probes / call.per_tile;
  const int32_t num_blocks =
      (num_entries + blocks.entries_per_block - 1) / blocks.entries_per_block;
  const auto most_blocks = static_cast<int32_t>(
      call.scratch_bytes / (sizeof(PackedRows<kPanels>) * static_cast<size_t>(call.num_kv_heads)));
  const int32_t num_pieces = blocks.entries_per_block * blocks.tile_rows * kPanels * kStepPieces;
  for (int32_t first = 0; first < num_blocks; first += most_blocks) {
    blocks.first_block = first;
    blocks.round_blocks = std::min(most_blocks, num_blocks - first);
    const int32_t num_others = blocks.round_blocks * call.num_kv_heads;
    const int32_t num_ctas =
        std::min(call.num_run_tiles,
                 (kCtasPerProcessor * call.num_processors + num_others - 1) / num_others);
    const auto round_blocks = static_cast<unsigned>(blocks.round_blocks);
    const auto num_heads = static_cast<unsigned>(call.num_kv_heads);
    const auto pack_ctas = static_cast<unsigned>((num_pieces + kPackThreads - 1) / kPackThreads);
    pack_rows<kPanels>
        <<<dim3(pack_ctas, round_blocks, num_heads), kPackThreads, 0, stream>>>(call, blocks);
    score_probes_hopper<kPanels><<<dim3(static_cast<unsigned>(num_ctas), round_blocks, num_heads),
                                   kNumThreads, num_bytes, stream>>>(call, blocks);
  }
  return cudaGetLastError();
}

cudaError_t launch(cudaStream_t stream, const ScoreCall& call) {
  return call.head_dim == 64 ? launch_width<1>(stream, call) : launch_width<2>(stream, call);
}

}  // namespace

ScoreKernel score_hopper_probes_kernel() {
  return {.fits = fits, .shape = shape, .launch = launch};
}

}  // namespace sluice::cuda
