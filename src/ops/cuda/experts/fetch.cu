// The fetch of missing experts: weights from pinned host memory to places of the cache.
//
// Bound: the bus; an expert has some megabytes. Tile and warps: as in hot_page_fetch.cu; a warp
// takes 4 KiB at a time, 8 independent 16-byte loads per lane. 8 blocks have half a mebibyte in
// flight, several times what the bus holds in its latency, and nothing else runs meanwhile: the
// products of the layer need these weights. Thread rule: enqueue only.
#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {
namespace {

constexpr int kBlocks = 8;
constexpr int kThreads = 512;
constexpr int kLoads = 8;  // in flight per lane
constexpr int kWarpLoadBytes = kWarpThreads * 16;
constexpr int64_t kPieceBytes = int64_t{kLoads} * kWarpLoadBytes;

// One of the two weights of an expert.
struct FetchedMatrix {
  const std::byte* src;
  std::byte* dst;
  int64_t stride_bytes;
};

// FetchExpertsArgs as plain pointers and sizes.
struct FetchCall {
  FetchedMatrix matrices[2];
  const int32_t* keys;            // [max_missing]
  const int32_t* places;          // [max_missing]
  const int32_t* count;           // [1]
  unsigned long long* num_bytes;  // [1], added to
};

__device__ inline int64_t pieces_of(const FetchedMatrix& matrix) {
  return (matrix.stride_bytes + kPieceBytes - 1) / kPieceBytes;
}

__device__ inline void copy_piece(const std::byte* src, std::byte* dst, int64_t num_bytes,
                                  int32_t lane) {
  uint4 data[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int32_t offset = i * kWarpLoadBytes + lane * 16;
    if (offset < num_bytes) data[i] = *reinterpret_cast<const uint4*>(src + offset);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int32_t offset = i * kWarpLoadBytes + lane * 16;
    if (offset < num_bytes) *reinterpret_cast<uint4*>(dst + offset) = data[i];
  }
}

// grid: blocks whose warps take the pieces of all missing experts in turn.
__global__ void __launch_bounds__(kThreads)
    fetch_experts_kernel(const __grid_constant__ FetchCall call) {
  let_next_kernel_start();
  wait_for_earlier_work();
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpThreads;
  const int64_t num_warps = int64_t{gridDim.x} * (kThreads / kWarpThreads);
  const int64_t of_first = pieces_of(call.matrices[0]);
  const int64_t per_expert = of_first + pieces_of(call.matrices[1]);
  const int32_t count = call.count[0];
  // Neighbouring pieces go to different multiprocessors.
  for (int64_t index = threadIdx.x / kWarpThreads * gridDim.x + blockIdx.x;
       index < count * per_expert; index += num_warps) {
    const auto missing = static_cast<int32_t>(index / per_expert);
    int64_t piece = index - missing * per_expert;
    const bool is_second = piece >= of_first;
    const FetchedMatrix& matrix = call.matrices[is_second ? 1 : 0];
    if (is_second) piece -= of_first;
    const int64_t offset = piece * kPieceBytes;
    copy_piece(matrix.src + call.keys[missing] * matrix.stride_bytes + offset,
               matrix.dst + call.places[missing] * matrix.stride_bytes + offset,
               min(matrix.stride_bytes - offset, kPieceBytes), lane);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && count > 0) {
    const int64_t expert_bytes = call.matrices[0].stride_bytes + call.matrices[1].stride_bytes;
    atomicAdd(call.num_bytes, static_cast<unsigned long long>(count * expert_bytes));
  }
}

FetchedMatrix make_matrix(const PackedExperts& src, const PackedExperts& dst) {
  const auto is_aligned = [](const std::byte* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  SLUICE_CHECK(is_aligned(src.first.data) && is_aligned(dst.first.data),
               "experts must begin at 16 bytes");
  return {.src = src.first.data,
          .dst = dst.first.data,
          .stride_bytes = static_cast<int64_t>(src.stride_bytes)};
}

}  // namespace

void CudaOps::fetch_experts(Stream& on, const FetchExpertsArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const FetchCall call = {
      .matrices = {make_matrix(args.src[0], args.dst[0]), make_matrix(args.src[1], args.dst[1])},
      .keys = args.missing.keys.data<int32_t>(),
      .places = args.missing.places.data<int32_t>(),
      .count = args.missing.count.data<int32_t>(),
      .num_bytes = reinterpret_cast<unsigned long long*>(args.num_bytes.data<int64_t>())};
  stream.submit("fetch_experts", [&](cudaStream_t) {
    launch_early(stream, fetch_experts_kernel, {.grid = dim3(kBlocks), .block = dim3(kThreads)},
                 call);
  });
}

}  // namespace sluice::cuda
