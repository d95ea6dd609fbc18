// add_tiles on CUDA: a warp for each entry of the mask, a lane for each bit of a word.
//
// Bound: reads and writes of the words. Thread rule: enqueue only.
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/tiles/tile_selection.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kNumWarps = kThreads / kWarpThreads;

// AddTilesArgs as plain pointers and sizes.
struct AddTilesCall {
  const int32_t* lists;   // [num_list_heads][3]
  const uint32_t* other;  // as bits; null: none
  const int32_t* row_begin;
  const int32_t* first_pos;
  uint32_t* bits;              // [num_list_heads][num_q_tiles][num_words]
  unsigned long long* counts;  // set, visible, cut
  int32_t num_q_tiles;
  int32_t num_words;
  int32_t first_q_tile;  // of the mask
  int32_t first_entry;   // of the rows, in the mask
  int32_t num_entries;
};

// grid: kNumWarps entries of the rows each, then list heads.
__global__ void __launch_bounds__(kThreads) add_tiles_kernel(const AddTilesCall call) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  const auto entry = static_cast<int32_t>(blockIdx.x * kNumWarps + threadIdx.x / kWarpThreads);
  const auto list = static_cast<int32_t>(blockIdx.y);
  const int32_t mask_entry = call.first_entry + entry;
  const int32_t q_tile = call.first_q_tile + mask_entry;
  const int32_t end_pos = *call.first_pos + call.row_begin[1] - call.row_begin[0];
  if (entry >= call.num_entries || static_cast<int64_t>(q_tile) * kMaskTileTokens >= end_pos) {
    return;
  }
  const int32_t* own = call.lists + list * 3;
  const int64_t first_word =
      (static_cast<int64_t>(list) * call.num_q_tiles + mask_entry) * call.num_words;
  int32_t num_new = 0;
  for (int32_t word = 0; word * 32 <= q_tile; ++word) {
    const int32_t kv_tile = word * 32 + lane;
    bool is_set = kv_tile <= q_tile && is_added(own[0], own[1], q_tile, kv_tile);
    if (kv_tile <= q_tile && call.other != nullptr && own[2] != 0) {
      is_set = is_set || (call.other[first_word + word] >> lane & 1) != 0;
    }
    const uint32_t added = __ballot_sync(kFullWarp, is_set);
    const uint32_t before = call.bits[first_word + word];
    __syncwarp();  // all lanes have read the word before one writes it
    if (lane == 0) call.bits[first_word + word] = before | added;
    num_new += __popc(added & ~before);
  }
  if (lane == 0) atomicAdd(&call.counts[0], static_cast<unsigned long long>(num_new));
}

}  // namespace

void CudaOps::add_tiles(Stream& on, const AddTilesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const TensorView& bits = args.mask.bits;
  const AddTilesCall call{
      .lists = args.lists.data<int32_t>(),
      .other = reinterpret_cast<const uint32_t*>(args.other.bits.bytes()),
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .bits = reinterpret_cast<uint32_t*>(bits.data<int32_t>()),
      .counts = reinterpret_cast<unsigned long long*>(args.counts.data<int64_t>()),
      .num_q_tiles = static_cast<int32_t>(bits.dim(2)),
      .num_words = static_cast<int32_t>(bits.dim(3)),
      .first_q_tile = args.mask.first_q_tile,
      .first_entry = args.rows.first / kMaskTileTokens,
      .num_entries = args.rows.num_q_tiles()};
  stream.submit("add_tiles", [&](cudaStream_t handle) {
    const dim3 grid(static_cast<unsigned>((call.num_entries + kNumWarps - 1) / kNumWarps),
                    static_cast<unsigned>(bits.dim(1)));
    add_tiles_kernel<<<grid, kThreads, 0, handle>>>(call);
  });
}

}  // namespace sluice::cuda
