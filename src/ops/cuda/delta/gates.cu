// The gated norm after the delta rule, and the output gate of attention, on CUDA.
//
// Bound: bytes; 8 an element of the norm, 6 of the gate. Compiled without contraction, as
// ops/portable_math.h requires: the bits are those of the CPU. Thread rule: enqueue only.
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/delta_rule.cuh"
#include "ops/portable_math.h"

namespace sluice::cuda {
namespace {

constexpr int kGateThreads = 256;

// GatedNormArgs as plain pointers and sizes.
struct NormCall {
  const float* x;        // [num_rows][num_heads][dim]
  const uint16_t* gate;  // bf16 [num_rows][gate_width], from the first column that is used
  const float* weight;   // [dim]
  uint16_t* out;         // bf16, as x
  int64_t num_heads;     // of all rows
  int64_t gate_width;
  int32_t heads_per_row;
  int32_t dim;
  float eps;
};

constexpr int kNormThreads = 64;  // a row of decode has few heads, which spread over blocks
constexpr int kHeadsPerBlock = kNormThreads / kHeadLanes;
// Elements of a lane that it asks for at once: those of a head of 128. Others come one by one.
constexpr int kHeldElements = 8;

// Tile: a head a half of a warp. Element i goes to the partial sum of lane i mod 16, and these are
// added by halves.
__global__ void __launch_bounds__(kNormThreads) norm_heads(const NormCall call) {
  let_next_kernel_start();
  const auto head = static_cast<uint32_t>(blockIdx.x) * kHeadsPerBlock + threadIdx.x / kHeadLanes;
  const int lane = threadIdx.x % kHeadLanes;
  const bool exists = head < call.num_heads;
  // Unsigned and of 32 bits: a division of 64 bits takes longer than the norm's sums.
  const auto heads_per_row = static_cast<uint32_t>(call.heads_per_row);
  const float* x = call.x + static_cast<int64_t>(head) * call.dim;
  const uint16_t* gates = call.gate + static_cast<int64_t>(head / heads_per_row) * call.gate_width +
                          static_cast<int64_t>(head % heads_per_row) * call.dim;
  uint16_t* out = call.out + static_cast<int64_t>(head) * call.dim;
  const auto has = [&](int i) { return exists && i < call.dim; };
  // The weight is no kernel's output, so it is asked for before x exists.
  float weights[kHeldElements], values[kHeldElements];
  uint16_t held_gates[kHeldElements];
#pragma unroll
  for (int j = 0; j < kHeldElements; ++j) {
    const int i = lane + j * kHeadLanes;
    weights[j] = has(i) ? call.weight[i] : 0.0f;
  }
  wait_for_earlier_work();
#pragma unroll
  for (int j = 0; j < kHeldElements; ++j) {
    const int i = lane + j * kHeadLanes;
    values[j] = has(i) ? x[i] : 0.0f;
    held_gates[j] = has(i) ? gates[i] : uint16_t{0};
  }
  // Sums go up by elements, first those that are held: the order of the CPU.
  constexpr int kFirstOther = kHeldElements * kHeadLanes;
  float sum = 0.0f;
#pragma unroll
  for (const float value : values) sum += value * value;
  for (int i = kFirstOther + lane; has(i); i += kHeadLanes) sum += x[i] * x[i];
  const float mean = group_sum<kHeadLanes>(sum) / static_cast<float>(call.dim);
  const float scale = 1.0f / sqrtf(mean + call.eps);
#pragma unroll
  for (int j = 0; j < kHeldElements; ++j) {
    const int i = lane + j * kHeadLanes;
    if (has(i)) out[i] = normed(values[j], scale, weights[j], held_gates[j]);
  }
  for (int i = kFirstOther + lane; has(i); i += kHeadLanes) {
    out[i] = normed(x[i], scale, call.weight[i], gates[i]);
  }
}

// SigmoidGateArgs as plain pointers and sizes.
struct GateCall {
  uint16_t* x;
  const uint16_t* gate;
  int64_t count;
  bool has_vectors;
};

// Tile: eight neighbouring elements a thread, of any row.
__global__ void __launch_bounds__(kGateThreads) multiply_gates(const GateCall call) {
  let_next_kernel_start();
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x) * 8;
  wait_for_earlier_work();
  if (begin >= call.count) return;
  if (call.has_vectors && begin + 8 <= call.count) {
    auto* x = reinterpret_cast<Bf16x8*>(call.x + begin);
    float values[8], gates[8];
    unpack(*x, values);
    unpack(*reinterpret_cast<const Bf16x8*>(call.gate + begin), gates);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = values[i] * fast_sigmoid(gates[i]);
    *x = pack(values);
    return;
  }
  for (int64_t i = begin; i < min(begin + 8, call.count); ++i) {
    call.x[i] = float_to_bf16(bf16_to_float(call.x[i]) * fast_sigmoid(bf16_to_float(call.gate[i])));
  }
}

LaunchShape blocks_for(int64_t count, int64_t per_block, int threads) {
  return {dim3(static_cast<unsigned>((count + per_block - 1) / per_block)),
          dim3(static_cast<unsigned>(threads))};
}

}  // namespace

void CudaOps::gated_norm(Stream& on, const GatedNormArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const int64_t dim = args.weight.dim(0);
  const int64_t heads_per_row = args.x.dim(1) / dim;
  const NormCall call{
      .x = args.x.data<float>(),
      .gate = reinterpret_cast<const uint16_t*>(args.gate.bytes()) + args.gate_column,
      .weight = args.weight.data<float>(),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_heads = args.x.dim(0) * heads_per_row,
      .gate_width = args.gate.dim(1),
      .heads_per_row = static_cast<int32_t>(heads_per_row),
      .dim = static_cast<int32_t>(dim),
      .eps = args.eps};
  if (call.num_heads == 0) return;
  stream.submit("gated_norm", [&](cudaStream_t) {
    launch_early(stream, norm_heads, blocks_for(call.num_heads, kHeadsPerBlock, kNormThreads),
                 call);
  });
}

void CudaOps::sigmoid_gate(Stream& on, const SigmoidGateArgs& args) const {
  CudaStream& stream = as_cuda(on);
  GateCall call{.x = reinterpret_cast<uint16_t*>(args.x.bytes()),
                .gate = reinterpret_cast<const uint16_t*>(args.gate.bytes()),
                .count = args.x.num_elements(),
                .has_vectors = false};
  call.has_vectors = is_aligned(call.x) && is_aligned(call.gate);
  if (call.count == 0) return;
  stream.submit("sigmoid_gate", [&](cudaStream_t) {
    launch_early(stream, multiply_gates, blocks_for(call.count, kGateThreads * 8, kGateThreads),
                 call);
  });
}

}  // namespace sluice::cuda
