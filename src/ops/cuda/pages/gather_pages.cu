// gather_pages on CUDA: a few warps with many independent loads in flight each.
//
// Bound: the bus. Tile: a warp takes 4 KiB of a page's keys or values at a time, 8 independent
// 16-byte loads per lane, and finds its next page while they are in flight. 64 warps keep 256 KiB
// in flight, more than twice what a bus of 55 GB/s needs at 2 us a read; they occupy 4
// multiprocessors, so that a matrix product that runs at the same time loses little. Share: some 92
// % of one large copy, for runs of 4 to 32 KiB. Thread rule: enqueue only.
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/pages/page_pieces.cuh"

namespace sluice::cuda {
namespace {

constexpr int kBlocks = 4;
// With resident pages: device memory is faster than what 64 warps can keep in flight. Additional
// warps that read over the bus only wait for it.
constexpr int kBlocksWithResidents = 16;
constexpr int kThreads = 512;

// The layout of blocks in bytes; src, resident and dst have one each.
struct Blocks {
  std::byte* base;
  int64_t stride_bytes;
  int64_t head_bytes;   // from the keys of a head to those of the next
  int64_t value_bytes;  // from the keys of a head to its values
};

// GatherPagesArgs as plain pointers and sizes.
struct GatherCall {
  Blocks src;
  Blocks resident;
  Blocks dst;
  const int32_t* block_ids;       // [num_blocks]: indices in src, in order of position
  const int32_t* places;          // [num_blocks], indices in resident or negative; null: none
  const int32_t* kv_end;          // [1]
  const int32_t* page_ids;        // [num_list_heads][max_pages]
  const int32_t* page_count;      // [num_list_heads]
  unsigned long long* num_bytes;  // [1], added to; null: not counted
  int32_t num_kv_heads;
  int32_t num_list_heads;
  int32_t max_pages;
  int32_t first_entry;
  int32_t num_entries;
  int32_t page_tokens;
  int32_t pages_per_block;
  PageBytes page;
};

// Up to kPieceBytes of the keys or values of a page. num_bytes 0: the entry does not exist or is
// not on the host, and nothing is copied.
struct Piece {
  const std::byte* src;
  std::byte* dst;
  int32_t num_bytes;
  bool is_resident;
};

// The number of entries of this call in the longest list: pieces after it need not be visited.
__device__ inline int32_t num_listed(const GatherCall& call) {
  int32_t most = 0;
  for (int32_t h = 0; h < call.num_list_heads; ++h) {
    most = max(most, min(call.page_count[h] - call.first_entry, call.num_entries));
  }
  return most;
}

// Piece `index`: pieces are numbered over the bytes of a run, then keys and values, then heads,
// then entries.
__device__ inline Piece find_piece(const GatherCall& call, int64_t index, int32_t kv_end) {
  const int32_t num_pieces = call.page.num_pieces();
  const PagePiece piece = call.page.piece(static_cast<int32_t>(index % num_pieces));
  index /= num_pieces;
  const auto head = static_cast<int32_t>(index % call.num_kv_heads);
  const auto j = static_cast<int32_t>(index / call.num_kv_heads);
  const int32_t list = call.num_list_heads == 1 ? 0 : head;
  const int32_t entry = call.first_entry + j;
  if (entry >= call.page_count[list]) return {};
  const int32_t page = call.page_ids[static_cast<int64_t>(list) * call.max_pages + entry];
  // 64 bits: a list may run far ahead of kv_end.
  if (static_cast<int64_t>(page) * call.page_tokens >= kv_end) return {};
  const int32_t index_of_block = page / call.pages_per_block;
  const int64_t page_in_block = page % call.pages_per_block;
  const int32_t place = call.places == nullptr ? -1 : call.places[index_of_block];
  // src and resident have the same block shape, so their offsets inside a block are the same.
  const std::byte* src =
      place >= 0 ? call.resident.base + place * call.resident.stride_bytes
                 : call.src.base + call.block_ids[index_of_block] * call.src.stride_bytes;
  src += head * call.src.head_bytes + page_in_block * piece.run_bytes;
  std::byte* dst = call.dst.base + j * call.dst.stride_bytes + head * call.dst.head_bytes;
  return {.src = src + (piece.is_value ? call.src.value_bytes : 0) + piece.offset,
          .dst = dst + (piece.is_value ? call.dst.value_bytes : 0) + piece.offset,
          .num_bytes = piece.num_bytes,
          .is_resident = place >= 0};
}

// grid: blocks that take pieces in turn. The next piece is found between the loads and the stores
// of this one, so that the lookup overlaps with the loads.
__global__ void __launch_bounds__(kThreads) gather_pages_kernel(const GatherCall call) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t num_warps = gridDim.x * (kThreads / kWarpThreads);
  const int32_t kv_end = *call.kv_end;
  const int64_t num_pieces =
      static_cast<int64_t>(num_listed(call)) * call.num_kv_heads * call.page.num_pieces();
  unsigned long long num_bytes = 0;
  // Neighbouring pieces go to different multiprocessors.
  int64_t index = threadIdx.x / kWarpThreads * gridDim.x + blockIdx.x;
  Piece piece = index < num_pieces ? find_piece(call, index, kv_end) : Piece{};
  while (index < num_pieces) {
    uint4 data[kPieceLoads];
#pragma unroll
    for (int i = 0; i < kPieceLoads; ++i) {
      const int32_t offset = i * kWarpLoadBytes + lane * 16;
      if (offset < piece.num_bytes) data[i] = *reinterpret_cast<const uint4*>(piece.src + offset);
    }
    index += num_warps;
    const Piece next = index < num_pieces ? find_piece(call, index, kv_end) : Piece{};
#pragma unroll
    for (int i = 0; i < kPieceLoads; ++i) {
      const int32_t offset = i * kWarpLoadBytes + lane * 16;
      if (offset < piece.num_bytes) *reinterpret_cast<uint4*>(piece.dst + offset) = data[i];
    }
    if (!piece.is_resident) num_bytes += piece.num_bytes;
    piece = next;
  }
  // All lanes of a warp counted the same pieces, so one adds for the warp.
  if (lane == 0 && num_bytes > 0 && call.num_bytes != nullptr) {
    atomicAdd(call.num_bytes, num_bytes);
  }
}

Blocks make_blocks(const KvBlocksView& kv) {
  return {.base = kv.base,
          .stride_bytes = static_cast<int64_t>(kv.stride_bytes),
          .head_bytes = static_cast<int64_t>(kv.shape.key_offset(1)),
          .value_bytes = static_cast<int64_t>(kv.shape.value_offset(0))};
}

GatherCall make_call(const GatherPagesArgs& args) {
  const PageList& pages = args.pages;
  const bool counts = args.num_bytes.present();
  return {
      .src = make_blocks(args.src),
      .resident = make_blocks(args.resident),
      .dst = make_blocks(args.dst),
      .block_ids = args.block_ids.data<int32_t>(),
      .places = args.places.present() ? args.places.data<int32_t>() : nullptr,
      .kv_end = args.kv_end.data<int32_t>(),
      .page_ids = pages.page_ids.data<int32_t>(),
      .page_count = pages.page_count.data<int32_t>(),
      .num_bytes =
          counts ? reinterpret_cast<unsigned long long*>(args.num_bytes.data<int64_t>()) : nullptr,
      .num_kv_heads = args.src.shape.num_kv_heads,
      .num_list_heads = static_cast<int32_t>(pages.page_ids.dim(1)),
      .max_pages = static_cast<int32_t>(pages.page_ids.dim(3)),
      .first_entry = pages.first_entry,
      .num_entries = pages.num_entries,
      .page_tokens = pages.page_tokens,
      .pages_per_block = args.src.shape.block_tokens / pages.page_tokens,
      .page = page_bytes(args.dst.shape),
  };
}

}  // namespace

void CudaOps::gather_pages(Stream& on, const GatherPagesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  SLUICE_CHECK(are_aligned(args.src) && are_aligned(args.dst) && are_aligned(args.resident),
               "blocks must begin at 16 bytes");
  if (args.pages.num_entries == 0) return;
  stream.submit("gather_pages", [&](cudaStream_t handle) {
    // The grid depends on the kind of call, not on lists, so that a graph can replay it.
    const int num_blocks = args.places.present() ? kBlocksWithResidents : kBlocks;
    gather_pages_kernel<<<num_blocks, kThreads, 0, handle>>>(make_call(args));
  });
}

}  // namespace sluice::cuda
