// Changed rows: adjustments of logits in place and back, masks, and given tokens.
//
// Used by sample.cu only, in an own instance of the kernel, so that calls without changed rows run
// the instructions that they had before. Thread rule: as sample/cluster.cuh.
#pragma once

#include <cfloat>

#include "ops/cuda/sample/cluster.cuh"
#include "ops/sample_call.h"

namespace sluice::cuda {

// A logit after its entry. Intrinsics, since a product and a difference would otherwise become one
// operation with a single rounding, unlike on the CPU.
__device__ inline float adjusted_logit(float logit, float bias, float repetition, float penalty) {
  const float biased = __fadd_rn(logit, bias);
  if (biased == -INFINITY) return biased;
  const float scaled =
      biased > 0.0f ? __fdiv_rn(biased, repetition) : __fmul_rn(biased, repetition);
  return fminf(fmaxf(__fsub_rn(scaled, penalty), -FLT_MAX), FLT_MAX);
}

// Makes writes to device memory by all threads of the cluster visible to all of them.
__device__ inline void sync_memory() {
  __threadfence();
  ClusterBlocks::sync();
  __threadfence();
}

// What a call says of one row besides its parameters. All threads of the cluster read the same.
class RowChanges {
 public:
  __device__ RowChanges(const SampleCall& call, int64_t row)
      : adjustments_(call.adjustments),
        logits_(call.logits + row * call.vocab),
        given_(call.given == nullptr ? -1 : call.given[row]) {
    if (adjustments_.begin != nullptr) {
      begin_ = adjustments_.begin[row];
      end_ = adjustments_.begin[row + 1];
    }
    const int32_t mask = call.masks == nullptr ? -1 : call.rows[row].mask;
    if (mask >= 0) {
      allowed_ = reinterpret_cast<const uint32_t*>(call.masks) + int64_t{mask} * call.num_words;
    }
  }

  __device__ bool any() const { return given_ >= 0 || begin_ < end_ || allowed_ != nullptr; }
  __device__ int32_t given() const { return given_; }              // -1: none
  __device__ const uint32_t* allowed() const { return allowed_; }  // null: all tokens

  // Replaces the logits of the row's entries and keeps their values in `scratch`. Order: every
  // block has read what it needs of the logits; `sync_memory` before anyone reads them again.
  __device__ void apply() const {
    for_each_entry([this](int i, float& logit) {
      adjustments_.scratch[i] = logit;
      logit = adjusted_logit(logit, adjustments_.bias[i], adjustments_.repetition[i],
                             adjustments_.penalty[i]);
    });
  }
  // Puts the values back. Order: as `apply`. A thread has the same entries in both.
  __device__ void restore() const {
    for_each_entry([this](int i, float& logit) { logit = adjustments_.scratch[i]; });
  }

 private:
  template <typename Fn>
  __device__ void for_each_entry(Fn&& fn) const {
    const int stride = static_cast<int>(ClusterBlocks::count() * kSampleThreads);
    const int first = static_cast<int>(ClusterBlocks::rank() * kSampleThreads + threadIdx.x);
    for (int i = begin_ + first; i < end_; i += stride) fn(i, logits_[adjustments_.ids[i]]);
  }

  const AdjustmentsCall& adjustments_;
  float* logits_;
  int32_t given_;
  int32_t begin_ = 0;
  int32_t end_ = 0;
  const uint32_t* allowed_ = nullptr;
};

}  // namespace sluice::cuda
