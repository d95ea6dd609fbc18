// The rate of multiply-adds on registers alone: the bound of the attention kernels. Used by
// cpu_attention_bench. Thread rule: main thread.
#pragma once

#include "device/cpu/cpu_features.h"
#include "device/cpu/cpu_stream.h"

namespace sluice::bench {

// FLOP/s (a multiply-add is two) of f32 fused multiply-adds, or of bf16 tile products for kAmx, on
// all threads of the stream together. 0 for kScalar, whose bound is the compiler's choice.
double measure_fma_peak(CpuStream& stream, CpuIsa isa);

}  // namespace sluice::bench
