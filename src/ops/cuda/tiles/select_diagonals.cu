// select_diagonals on CUDA: a block of threads for each segment and list head.
//
// The largest sums (tiles/largest.cuh) become bits of diagonals in shared memory, from which the
// words of the segment's query tiles are written, a warp each. Thread rule: enqueue only.
#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/largest.cuh"
#include "ops/tiles/tile_lines.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kNumWarps = kThreads / kWarpThreads;
using LargestSums = Largest<kThreads, int64_t>;

// SelectDiagonalsArgs as plain pointers and sizes.
struct DiagonalsCall {
  const int64_t* diagonals;  // [num_list_heads][num_segments][num_kv_tiles]
  const int32_t* max_count;  // [num_list_heads]; null: by the rule's share
  const int32_t* patterns;   // [num_q_heads][num_segments]; null: all heads have lines
  const int32_t* row_begin;
  const int32_t* first_pos;
  TileRule rule;
  int64_t prompt_end;
  uint32_t* bits;              // [num_list_heads][num_q_tiles][num_words]
  unsigned long long* counts;  // set, visible, cut
  int32_t num_kv_tiles;
  int32_t num_segments;
  int32_t tiles_per_segment;
  int32_t num_q_tiles;
  int32_t num_words;
  int32_t first_q_tile;  // of the mask
  int32_t first_entry;   // of the rows, in the mask
  int32_t num_entries;
  int32_t heads_per_list;
};

__device__ inline bool has_lines(const DiagonalsCall& call, int32_t list, int32_t segment) {
  if (call.patterns == nullptr) return true;
  for (int32_t h = 0; h < call.heads_per_list; ++h) {
    const int64_t head = static_cast<int64_t>(list) * call.heads_per_list + h;
    const int32_t pattern = call.patterns[head * call.num_segments + segment];
    if (pattern == static_cast<int32_t>(HeadPattern::kLines)) return true;
  }
  return false;
}

// What a segment takes beside the bits of its diagonals.
struct SegmentChoice {
  bool is_everything = false;
  const int64_t* sums = nullptr;  // of its diagonals; null: no head has lines
  int32_t end_tile = 0;           // later diagonals have no tiles in the segment
};

// Sets the bits of the diagonals that a segment takes. `diagonals` has a bit for each KV tile, and
// at least two. REQUIRES: every thread calls it.
__device__ inline SegmentChoice take_diagonals(const DiagonalsCall& call, int32_t list,
                                               int32_t segment, int32_t end_pos,
                                               LargestSums::Shared& shared, uint32_t* diagonals) {
  const bool any_lines = has_lines(call, list, segment);
  for (int32_t i = threadIdx.x; i < call.num_words; i += kThreads) {
    diagonals[i] = i == 0 && any_lines ? 3 : 0;  // 0 and 1
  }
  if (!any_lines) return {};
  const int64_t* sums =
      call.diagonals +
      (static_cast<int64_t>(list) * call.num_segments + segment) * call.num_kv_tiles;
  const int64_t end_of_segment = call.first_q_tile + call.first_entry +
                                 static_cast<int64_t>(segment + 1) * call.tiles_per_segment;
  const int64_t num_keys = min(end_of_segment * kMaskTileTokens, static_cast<int64_t>(end_pos));
  const auto end_tile = min(static_cast<int32_t>(mask_tiles_of(num_keys)), call.num_kv_tiles);
  const bool by_share = call.max_count == nullptr;
  const int32_t most =
      by_share ? end_tile
               : static_cast<int32_t>(call.rule.most_diagonals(call.max_count[list], num_keys));
  LargestSums largest(sums, {2, end_tile, max(most - 2, 0)}, shared);
  const uint64_t near = (end_tile > 0 ? sums[0] : 0) + (end_tile > 1 ? sums[1] : 0);
  if (near == 0 && largest.count_from(1) == 0) return {.is_everything = true};
  if (!by_share && most >= end_tile) return {.is_everything = true};
  if (by_share) {
    const uint64_t total = near + largest.sum_from(1);
    largest.leave_at_most(total - share_of_total(total, call.rule.share));
  }
  const LargestCut<int64_t> cut = largest.find_cut();  // its barriers are after the bits of 0 and 1
  if (cut.count > 0) {
    largest.for_each_taken(
        cut, [=](int32_t, int32_t d) { atomicOr(&diagonals[d / 32], 1u << (d % 32)); });
  }
  return {.sums = sums, .end_tile = end_tile};
}

// The diagonal with the largest sum, of equal sums the smallest, among those of a query tile whose
// bit is not set. REQUIRES: there is one; the whole warp calls it.
__device__ inline int32_t next_diagonal(const SegmentChoice& choice, int32_t q_tile,
                                        const uint32_t* words) {
  int64_t largest = -1;
  int32_t best = 0;
  for (int32_t d = threadIdx.x % kWarpThreads; d <= q_tile; d += kWarpThreads) {
    const int32_t j = q_tile - d;
    if ((words[j / 32] >> (j % 32) & 1) != 0 || choice.sums[d] <= largest) continue;
    largest = choice.sums[d];
    best = d;
  }
#pragma unroll
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    const int64_t other = __shfl_xor_sync(kFullWarp, largest, step);
    const int32_t other_best = __shfl_xor_sync(kFullWarp, best, step);
    if (other < largest || (other == largest && other_best >= best)) continue;
    largest = other;
    best = other_best;
  }
  return best;
}

// Adds tiles to a query tile that has fewer than the rule demands; returns how many. The words are
// read by the warp that wrote them. REQUIRES: the whole warp calls it.
__device__ inline int32_t fill_up(const DiagonalsCall& call, const SegmentChoice& choice,
                                  int32_t q_tile, int32_t num_set, uint32_t* words) {
  if (q_tile >= choice.end_tile) return 0;
  const int32_t wanted = min(call.rule.min_tiles, q_tile + 1) - num_set;
  for (int32_t i = 0; i < wanted; ++i) {
    __syncwarp();
    const int32_t j = q_tile - next_diagonal(choice, q_tile, words);
    __syncwarp();
    if (threadIdx.x % kWarpThreads == 0) words[j / 32] |= 1u << (j % 32);
  }
  return max(wanted, 0);
}

// Writes the words of a query tile and returns how many of its bits are set. REQUIRES: the whole
// warp calls it.
__device__ inline int32_t write_words(const DiagonalsCall& call, const QueryTile& tile,
                                      bool is_everything, const uint32_t* diagonals,
                                      uint32_t* words) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  int32_t num_set = 0;
  for (int32_t word = 0; word < call.num_words; ++word) {
    const int32_t j = word * 32 + lane;
    bool is_set = j <= tile.q_tile;
    if (is_set && !is_everything && !is_forced(call.rule, tile, j)) {
      const int32_t d = tile.q_tile - j;
      is_set = (diagonals[d / 32] >> (d % 32) & 1) != 0;
    }
    const uint32_t set = __ballot_sync(kFullWarp, is_set);
    if (lane == 0) words[word] = set;
    num_set += __popc(set);
  }
  return num_set;
}

// grid: segments, list heads.
__global__ void __launch_bounds__(kThreads) select_diagonals_kernel(const DiagonalsCall call) {
  extern __shared__ uint32_t diagonals[];  // [num_words]
  __shared__ LargestSums::Shared shared;
  const auto segment = static_cast<int32_t>(blockIdx.x);
  const auto list = static_cast<int32_t>(blockIdx.y);
  const int32_t end_pos = *call.first_pos + call.row_begin[1] - call.row_begin[0];
  const SegmentChoice choice = take_diagonals(call, list, segment, end_pos, shared, diagonals);
  __syncthreads();
  const int32_t begin = segment * call.tiles_per_segment;
  const int32_t end = min(begin + call.tiles_per_segment, call.num_entries);
  for (int32_t entry = begin + static_cast<int32_t>(threadIdx.x) / kWarpThreads; entry < end;
       entry += kNumWarps) {
    const int32_t mask_entry = call.first_entry + entry;
    uint32_t* words =
        call.bits + (static_cast<int64_t>(list) * call.num_q_tiles + mask_entry) * call.num_words;
    QueryTile tile{.q_tile = call.first_q_tile + mask_entry, .prompt_end = call.prompt_end};
    const bool exists = tile.first_row() < end_pos;
    if (!exists) tile.q_tile = -1;  // sees nothing
    const bool is_everything = choice.is_everything || attends_everything(call.rule, tile);
    int32_t num_set = write_words(call, tile, is_everything, diagonals, words);
    if (exists && choice.sums != nullptr) {
      num_set += fill_up(call, choice, tile.q_tile, num_set, words);
    }
    if (!exists || threadIdx.x % kWarpThreads != 0) continue;
    atomicAdd(&call.counts[0], static_cast<unsigned long long>(num_set));
    atomicAdd(&call.counts[1], static_cast<unsigned long long>(tile.q_tile + 1));
  }
}

}  // namespace

void CudaOps::select_diagonals(Stream& on, const SelectDiagonalsArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const TensorView& bits = args.mask.bits;
  const bool by_share = args.rule.choice == TileChoice::kCoverage;
  const int64_t num_q_heads = args.patterns.present() ? args.patterns.dim(0) : 0;
  const DiagonalsCall call{
      .diagonals = args.diagonals.data<int64_t>(),
      .max_count = by_share ? nullptr : args.max_count.data<int32_t>(),
      .patterns = args.patterns.present() ? args.patterns.data<int32_t>() : nullptr,
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .rule = args.rule,
      .prompt_end = args.prompt_end,
      .bits = reinterpret_cast<uint32_t*>(bits.data<int32_t>()),
      .counts = reinterpret_cast<unsigned long long*>(args.counts.data<int64_t>()),
      .num_kv_tiles = static_cast<int32_t>(args.diagonals.dim(2)),
      .num_segments = static_cast<int32_t>(args.diagonals.dim(1)),
      .tiles_per_segment = args.segment_tokens / kMaskTileTokens,
      .num_q_tiles = static_cast<int32_t>(bits.dim(2)),
      .num_words = static_cast<int32_t>(bits.dim(3)),
      .first_q_tile = args.mask.first_q_tile,
      .first_entry = args.rows.first / kMaskTileTokens,
      .num_entries = args.rows.num_q_tiles(),
      .heads_per_list = static_cast<int32_t>(num_q_heads / args.diagonals.dim(0))};
  const size_t num_bytes = static_cast<size_t>(call.num_words) * sizeof(uint32_t);
  const size_t most_bytes = stream.cuda_device().properties().sharedMemPerBlock;
  if (num_bytes + sizeof(LargestSums::Shared) > most_bytes) {
    fail(ErrorCode::kUnsupported,
         "select_diagonals on {}: bits of {} diagonals take {} bytes of shared memory, it has {}; "
         "use a shorter prompt or the device 'cpu'",
         stream.device().info().name, call.num_kv_tiles, num_bytes,
         most_bytes - sizeof(LargestSums::Shared));
  }
  if (args.diagonals.num_elements() == 0) return;
  stream.submit("select_diagonals", [&](cudaStream_t handle) {
    const dim3 grid(static_cast<unsigned>(call.num_segments),
                    static_cast<unsigned>(args.diagonals.dim(0)));
    select_diagonals_kernel<<<grid, kThreads, num_bytes, handle>>>(call);
  });
}

}  // namespace sluice::cuda
