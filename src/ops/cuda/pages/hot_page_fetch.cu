// The fetch of hot pages that are missing: pages from pinned host memory to places of the cache.
//
// Bound: the bus, or its latency where little is missing. Tile and warps: as in gather_pages.cu; a
// warp takes 4 KiB of a page's keys or values at a time, 8 independent 16-byte loads per lane.
// Thread rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/pages/page_pieces.cuh"

namespace sluice::cuda {
namespace {

constexpr int kBlocks = 4;  // they occupy few multiprocessors, as those of gather_pages.cu
constexpr int kThreads = 512;

// FetchHotPagesArgs as plain pointers and sizes.
struct FetchCall {
  const std::byte* src;
  std::byte* dst;
  const int32_t* keys;            // [num_heads][max_missing]
  const int32_t* places;          // [num_heads][max_missing]
  const int32_t* count;           // [num_heads]
  unsigned long long* num_bytes;  // [1], added to
  int64_t src_stride_bytes;
  int64_t dst_stride_bytes;
  int64_t src_head_bytes;  // from the keys of a head of a block to those of the next
  int64_t src_key_bytes;   // and to its values
  PageBytes page;
  int32_t num_heads;
  int32_t max_missing;
  int32_t pages_per_block;
};

struct Piece {
  const std::byte* src;
  std::byte* dst;
  int32_t num_bytes;
};

// Piece `index` of a head's missing pages: over the bytes of a run, then keys and values, then
// pages.
__device__ inline Piece find_piece(const FetchCall& call, int32_t head, int32_t index) {
  const int32_t num_pieces = call.page.num_pieces();
  const PagePiece piece = call.page.piece(index % num_pieces);
  const int64_t at = static_cast<int64_t>(head) * call.max_missing + index / num_pieces;
  const int32_t key = call.keys[at];
  const int32_t place = call.places[at];
  return {.src = call.src + key / call.pages_per_block * call.src_stride_bytes +
                 head * call.src_head_bytes + (piece.is_value ? call.src_key_bytes : 0) +
                 static_cast<int64_t>(key % call.pages_per_block) * piece.run_bytes + piece.offset,
          .dst = call.dst + place * call.dst_stride_bytes +
                 static_cast<int64_t>(head) * (call.page.keys + call.page.values) +
                 (piece.is_value ? call.page.keys : 0) + piece.offset,
          .num_bytes = piece.num_bytes};
}

__device__ inline void copy_piece(const Piece& piece, int32_t lane) {
  uint4 data[kPieceLoads];
#pragma unroll
  for (int i = 0; i < kPieceLoads; ++i) {
    const int32_t offset = i * kWarpLoadBytes + lane * 16;
    if (offset < piece.num_bytes) data[i] = *reinterpret_cast<const uint4*>(piece.src + offset);
  }
#pragma unroll
  for (int i = 0; i < kPieceLoads; ++i) {
    const int32_t offset = i * kWarpLoadBytes + lane * 16;
    if (offset < piece.num_bytes) *reinterpret_cast<uint4*>(piece.dst + offset) = data[i];
  }
}

// grid: blocks whose warps take the pieces of all heads in turn.
__global__ void __launch_bounds__(kThreads) fetch_hot_pages_kernel(const FetchCall call) {
  let_next_kernel_start();
  wait_for_earlier_work();
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t num_warps = gridDim.x * (kThreads / kWarpThreads);
  const int32_t pieces_per_page = call.page.num_pieces();
  // Neighbouring pieces go to different multiprocessors. A warp goes on in the next head where it
  // has left off, so that heads of few missing pages still occupy all warps.
  int32_t index = threadIdx.x / kWarpThreads * gridDim.x + blockIdx.x;
  int64_t num_pages = 0;
  for (int32_t first = 0; first < call.num_heads; first += kWarpThreads) {
    // All counts at once, since each access to the L2 cache takes as long as a kilobyte of the
    // link.
    const int32_t of_lane = first + lane < call.num_heads ? call.count[first + lane] : 0;
    const int32_t num_heads = min(call.num_heads - first, kWarpThreads);
    for (int32_t head = 0; head < num_heads; ++head) {
      const int32_t count = __shfl_sync(kFullWarp, of_lane, head);
      const int32_t num_pieces = count * pieces_per_page;
      for (; index < num_pieces; index += num_warps) {
        copy_piece(find_piece(call, first + head, index), lane);
      }
      index -= num_pieces;
      num_pages += count;
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && num_pages > 0) {
    atomicAdd(call.num_bytes,
              static_cast<unsigned long long>(num_pages) * (call.page.keys + call.page.values));
  }
}

FetchCall make_fetch_call(const FetchHotPagesArgs& args) {
  return {.src = args.src.base,
          .dst = args.dst.base,
          .keys = args.missing.keys.data<int32_t>(),
          .places = args.missing.places.data<int32_t>(),
          .count = args.missing.count.data<int32_t>(),
          .num_bytes = reinterpret_cast<unsigned long long*>(args.num_bytes.data<int64_t>()),
          .src_stride_bytes = static_cast<int64_t>(args.src.stride_bytes),
          .dst_stride_bytes = static_cast<int64_t>(args.dst.stride_bytes),
          .src_head_bytes = static_cast<int64_t>(args.src.shape.head_bytes()),
          .src_key_bytes = static_cast<int64_t>(args.src.shape.keys().bytes()),
          .page = page_bytes(args.dst.shape),
          .num_heads = args.src.shape.num_kv_heads,
          .max_missing = static_cast<int32_t>(args.missing.keys.dim(1)),
          .pages_per_block = args.src.shape.block_tokens / args.dst.shape.block_tokens};
}

}  // namespace

void CudaOps::fetch_hot_pages(Stream& on, const FetchHotPagesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  SLUICE_CHECK(are_aligned(args.src) && are_aligned(args.dst), "blocks must begin at 16 bytes");
  stream.submit("fetch_hot_pages", [&](cudaStream_t) {
    launch_early(stream, fetch_hot_pages_kernel, {.grid = dim3(kBlocks), .block = dim3(kThreads)},
                 make_fetch_call(args));
  });
}

}  // namespace sluice::cuda
