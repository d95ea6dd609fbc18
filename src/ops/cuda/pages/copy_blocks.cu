// copy_blocks on CUDA: the ids are kernel parameters, and a few warps move 4 KiB at a time.
//
// Bound: the bus, as of gather_pages.cu. Tile: as there, 64 warps on 4 multiprocessors, 8
// independent 16-byte loads per lane in flight. Share: some 92 % of one large copy for blocks of
// any size from 64 KiB on; copies by the copy engine are slower below about 2 MiB a block. Thread
// rule: enqueue only.
#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {
namespace {

constexpr int kBlocks = 4;
constexpr int kThreads = 512;
constexpr int kLoads = 8;  // in flight per lane
constexpr int kWarpLoadBytes = kWarpThreads * 16;
constexpr uint32_t kPieceBytes = kLoads * kWarpLoadBytes;

// Parameters of a launch may take 4096 bytes on every GPU and driver. A call of more ids becomes
// several launches; each moves enough bytes that the gaps between them do not matter.
constexpr size_t kIdsPerLaunch = 960;

// `ids` are indices of blocks of src; block j of dst receives block ids[j].
struct CopyCall {
  const std::byte* src;
  int64_t src_stride_bytes;
  std::byte* dst;
  int64_t dst_stride_bytes;
  uint32_t block_bytes;
  uint32_t num_ids;
  int32_t ids[kIdsPerLaunch];
};
static_assert(sizeof(CopyCall) <= 4096);

// grid: kBlocks, whatever the number of ids; a warp takes a piece of kPieceBytes at a time.
__global__ void __launch_bounds__(kThreads)
    copy_blocks_kernel(const __grid_constant__ CopyCall call) {
  const uint32_t lane = threadIdx.x % kWarpThreads;
  const uint32_t num_warps = gridDim.x * (kThreads / kWarpThreads);
  // The last piece of a block may be shorter; blocks are multiples of 16 bytes
  // (ops/pages/copy_blocks.h).
  const uint32_t pieces_per_block = (call.block_bytes + kPieceBytes - 1) / kPieceBytes;
  const uint32_t num_pieces = call.num_ids * pieces_per_block;
  // Neighbouring pieces go to different multiprocessors.
  for (uint32_t index = threadIdx.x / kWarpThreads * gridDim.x + blockIdx.x; index < num_pieces;
       index += num_warps) {
    const uint32_t j = index / pieces_per_block;
    const uint32_t offset = index % pieces_per_block * kPieceBytes;
    const std::byte* src = call.src + call.ids[j] * call.src_stride_bytes + offset;
    std::byte* dst = call.dst + j * call.dst_stride_bytes + offset;
    const uint32_t num_bytes = min(call.block_bytes - offset, kPieceBytes);
    uint4 data[kLoads];
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      const uint32_t at = i * kWarpLoadBytes + lane * 16;
      if (at < num_bytes) data[i] = *reinterpret_cast<const uint4*>(src + at);
    }
#pragma unroll
    for (uint32_t i = 0; i < kLoads; ++i) {
      const uint32_t at = i * kWarpLoadBytes + lane * 16;
      if (at < num_bytes) *reinterpret_cast<uint4*>(dst + at) = data[i];
    }
  }
}

}  // namespace

void CudaOps::copy_blocks(Stream& on, const CopyBlocksArgs& args) const {
  CudaStream& stream = as_cuda(on);
  SLUICE_CHECK(are_aligned(args.src) && are_aligned(args.dst), "blocks must begin at 16 bytes");
  for (size_t first = 0; first < args.block_ids.size(); first += kIdsPerLaunch) {
    CopyCall call{
        .src = args.src.base,
        .src_stride_bytes = static_cast<int64_t>(args.src.stride_bytes),
        .dst = args.dst.base + first * args.dst.stride_bytes,
        .dst_stride_bytes = static_cast<int64_t>(args.dst.stride_bytes),
        .block_bytes = static_cast<uint32_t>(args.src.shape.block_bytes()),
        .num_ids = static_cast<uint32_t>(std::min(kIdsPerLaunch, args.block_ids.size() - first)),
        .ids = {}};
    for (uint32_t j = 0; j < call.num_ids; ++j) call.ids[j] = args.block_ids[first + j].value;
    stream.submit("copy_blocks", [&](cudaStream_t handle) {
      copy_blocks_kernel<<<kBlocks, kThreads, 0, handle>>>(call);
    });
  }
}

}  // namespace sluice::cuda
