// SwiGLU and row gathering on CUDA. Both are bound by bytes.
//
// SwiGLU here follows products of many rows; for few rows the gate is part of the product
// (ops/cuda/matmul/skinny.cu). Thread rule: enqueue only.
#include <algorithm>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/rows/copy_rows.h"
#include "ops/cuda/rows/silu.cuh"

namespace sluice::cuda {
namespace {

struct SwigluCall {
  const uint16_t* gate_up;  // bf16 [num_rows][2 * intermediate]: gate, then up
  uint16_t* out;            // bf16 [num_rows][intermediate]
  int64_t num_rows;
  int32_t intermediate;
};

constexpr int kSwigluThreads = 256;
constexpr int kSwigluVectors = 2;  // per thread, so that four loads of 16 bytes are in flight

// Bound: bytes, 6 per element of out. Tile: 2 x 8 elements a thread, of any row. Share: the rate of
// a device-to-device copy with many rows (docs/kernels/cuda_ops.md). Indices are 32 bits wide,
// which the check of num_elements in CudaOps::swiglu allows.
__global__ void __launch_bounds__(kSwigluThreads) swiglu_vectors(SwigluCall call) {
  const auto vectors_per_row = static_cast<uint32_t>(call.intermediate / 8);
  const auto num_vectors = static_cast<uint32_t>(call.num_rows) * vectors_per_row;
  const uint32_t first = blockIdx.x * (kSwigluThreads * kSwigluVectors) + threadIdx.x;
  const auto* gate_up = reinterpret_cast<const Bf16x8*>(call.gate_up);
  let_next_kernel_start();
  wait_for_earlier_work();
  Bf16x8 gates[kSwigluVectors], ups[kSwigluVectors];
#pragma unroll
  for (int v = 0; v < kSwigluVectors; ++v) {
    const uint32_t index = first + v * kSwigluThreads;
    if (index >= num_vectors) continue;
    // Rows of gate_up are twice as long as rows of out: vector i of row r has its gate at vector
    // 2 r * vectors_per_row + i, and `up` vectors_per_row further.
    const uint64_t source = uint64_t{index} + index / vectors_per_row * vectors_per_row;
    gates[v] = gate_up[source];
    ups[v] = gate_up[source + vectors_per_row];
  }
#pragma unroll
  for (int v = 0; v < kSwigluVectors; ++v) {
    const uint32_t index = first + v * kSwigluThreads;
    if (index >= num_vectors) continue;
    float gate[8], up[8];
    unpack(gates[v], gate);
    unpack(ups[v], up);
#pragma unroll
    for (int i = 0; i < 8; ++i) gate[i] = silu_times(gate[i], up[i]);
    reinterpret_cast<Bf16x8*>(call.out)[index] = pack(gate);
  }
}

// Any width at any alignment, one element a thread: models whose intermediate size is no multiple
// of 8.
__global__ void __launch_bounds__(kSwigluThreads) swiglu_elements(SwigluCall call) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kSwigluThreads + threadIdx.x;
  const int64_t row = index / call.intermediate;
  let_next_kernel_start();
  wait_for_earlier_work();
  if (row >= call.num_rows) return;
  const uint16_t* gate = call.gate_up + index + row * call.intermediate;
  call.out[index] =
      float_to_bf16(silu_times(bf16_to_float(gate[0]), bf16_to_float(gate[call.intermediate])));
}

// Vectors where width and alignment allow them; both kernels compute the same numbers.
void launch_swiglu(CudaStream& stream, const SwigluCall& call) {
  const bool vectors =
      call.intermediate % 8 == 0 && is_aligned(call.gate_up) && is_aligned(call.out);
  const int64_t num_elements = call.num_rows * call.intermediate;
  const int64_t per_block = vectors ? kSwigluThreads * kSwigluVectors * 8 : kSwigluThreads;
  const auto num_blocks = static_cast<unsigned>((num_elements + per_block - 1) / per_block);
  launch_early(stream, vectors ? swiglu_vectors : swiglu_elements,
               {dim3(num_blocks), dim3(kSwigluThreads)}, call);
}

}  // namespace

void CudaOps::swiglu(Stream& on, const SwigluArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const SwigluCall call{
      .gate_up = reinterpret_cast<const uint16_t*>(args.gate_up.bytes()),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.out.dim(0),
      .intermediate = static_cast<int32_t>(args.out.dim(1)),
  };
  // The vector kernel counts vectors of 8 in 32 bits.
  const int64_t num_elements = call.num_rows * call.intermediate;
  SLUICE_CHECK(num_elements < int64_t{1} << 34, "swiglu: {} elements", num_elements);
  if (num_elements == 0) return;
  stream.submit("swiglu", [&](cudaStream_t) { launch_swiglu(stream, call); });
}

void CudaOps::gather_rows(Stream& on, const GatherRowsArgs& args) const {
  CudaStream& stream = as_cuda(on);
  CopyRowsCall call{
      .table = reinterpret_cast<const uint16_t*>(args.x.bytes()),
      .indices = args.indices.data<int32_t>(),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .table_rows = args.x.dim(0),
      .num_indices = args.out.dim(0),
      .width = args.x.dim(1),
      .report = {},
  };
  // A bad index is found on the device only, hence a report that the next host wait throws.
  stream.submit("gather_rows", [&](cudaStream_t) {
    call.report = stream.report("gather_rows", "indices[{}] is outside the rows of x");
    copy_rows(stream, call);
  });
}

}  // namespace sluice::cuda
