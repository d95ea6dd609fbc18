// What the kernels of products with few rows share: their calls, and how the sums of a block are
// written.
//
// A block has some rows of the weight and all of k, which its warps share. Used by skinny.cu and
// skinny_ring.cuh. Thread rule: device code.
#pragma once

#include <type_traits>

#include "ops/cuda/common.cuh"
#include "ops/cuda/matmul/skinny.h"
#include "ops/cuda/rows/silu.cuh"

namespace sluice::cuda {

// MatmulArgs or GatedProductArgs as plain pointers and sizes.
struct SkinnyCall {
  const uint16_t* x;
  const void* weight;    // bf16, or codes
  const uint16_t* bias;  // or null
  void* out;
  int32_t m;
  int32_t n;
  int32_t k;
  int32_t gated;  // columns of out after the gate, n / 2; 0: there is no gate
};

inline SkinnyCall skinny_call(const MatmulArgs& args) {
  return {.x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
          .weight = args.weight.data,
          .bias = reinterpret_cast<const uint16_t*>(args.bias.bytes()),
          .out = args.out.bytes(),
          .m = args.x.present() ? static_cast<int32_t>(args.x.dim(0)) : 0,
          .n = static_cast<int32_t>(args.weight.num_rows),
          .k = static_cast<int32_t>(args.weight.num_cols),
          .gated = 0};
}

// With the gate.
inline SkinnyCall skinny_call(const GatedProductArgs& args) {
  SkinnyCall call = skinny_call({.x = args.x, .weight = args.weight, .bias = {}, .out = args.out});
  call.gated = static_cast<int32_t>(args.out.dim(1));
  return call;
}

template <typename Out>
__device__ inline void store(Out* out, float value) {
  if constexpr (std::is_same_v<Out, float>) {
    *out = value;
  } else {
    *out = float_to_bf16(value);
  }
}

// Writes the kColumns columns of out of a block's part of the weight, the `part`th, plus bias;
// `thread` is one of the block's kThreads, each once. total(row, column) adds up the warps' sums.
template <int kColumns, int kThreads, typename Out, typename Total>
__device__ inline void write_sums(const SkinnyCall& call, int part, int thread,
                                  const Total& total) {
  for (int i = thread; i < call.m * kColumns; i += kThreads) {
    const int row = i / kColumns;
    const int column = i % kColumns;
    float sum = total(row, column);
    const int n = part * kColumns + column;
    if (n >= call.n) continue;
    if (call.bias != nullptr) sum += bf16_to_float(call.bias[n]);
    store(static_cast<Out*>(call.out) + static_cast<int64_t>(row) * call.n + n, sum);
  }
}

// The same, after the gate: the columns from kColumns on are `up`. Both are rounded to bf16 as if
// `matmul` had written them (the contract of gated_product).
template <int kColumns, int kThreads, typename Total>
__device__ inline void write_gated(const SkinnyCall& call, int part, int thread,
                                   const Total& total) {
  for (int i = thread; i < call.m * kColumns; i += kThreads) {
    const int row = i / kColumns;
    const int column = i % kColumns;
    const float gate = total(row, column);
    const float up = total(row, column + kColumns);
    const int n = part * kColumns + column;
    if (n >= call.gated) continue;
    store(static_cast<uint16_t*>(call.out) + static_cast<int64_t>(row) * call.gated + n,
          silu_times(bf16_to_float(float_to_bf16(gate)), bf16_to_float(float_to_bf16(up))));
  }
}

}  // namespace sluice::cuda
