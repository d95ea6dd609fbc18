// What every row of logits needs before a token is chosen: the call and its parameters, the first
// pass, and the numbers that log-probabilities are computed from.
//
// Used by sample.cu only. Thread rule: as sample/cluster.cuh.
#pragma once

#include <climits>
#include <cmath>

#include <cuda_pipeline_primitives.h>

#include "device/cuda/cuda_report.h"
#include "ops/cuda/sample/select.cuh"
#include "ops/sample_call.h"

namespace sluice::cuda {

// `aligned`: groups of 4 logits can be loaded as vectors.
struct CudaSampleCall : SampleCall {
  bool aligned = false;
  CudaReport bad_logits = {};
  CudaReport nothing_left = {};
};

// The state of a block while it works on its row.
template <bool kHeld, bool kChanges>
struct RowWork {
  SampleShared& shared;
  SampleRow& params;  // shared memory, complete after the first barrier
  Tokens<kHeld, kChanges> tokens;
  Reducer& reduce;
  const CudaSampleCall& call;
  int64_t row;
};

// A SampleRow in shared memory, where nothing with initial values can be declared.
inline constexpr int kRowPieces = sizeof(SampleRow) / sizeof(float4);
static_assert(kRowPieces * sizeof(float4) == sizeof(SampleRow));

// Starts asynchronous copies of the row's parameters, which overlap with the first pass. The first
// thread of a block calls it. Order: `finish_fetch` before the barrier.
__device__ inline void begin_fetch(const CudaSampleCall& call, int64_t row, SampleRow& params) {
  auto* const to = reinterpret_cast<float4*>(&params);
  const auto* const from = reinterpret_cast<const float4*>(call.rows + row);
#pragma unroll
  for (int i = 0; i < kRowPieces; ++i) __pipeline_memcpy_async(to + i, from + i, sizeof(float4));
  __pipeline_commit();
}
__device__ inline void finish_fetch() { __pipeline_wait_prior(0); }

// The result of the first pass.
struct Peak {
  float largest;    // of all logits
  float allowed;    // of those that are not suppressed
  int32_t id;       // the lowest with that logit
  int32_t has_nan;  // 0 or 1
};

template <bool kHeld, bool kChanges>
__device__ Peak find_peak(const RowWork<kHeld, kChanges>& work) {
  if (threadIdx.x == 0) begin_fetch(work.call, work.row, work.params);
  Peak peak = {-INFINITY, -INFINITY, INT_MAX, 0};
  work.tokens.load([&](int first_id, const float(&values)[4]) {
    const uint32_t banned = work.tokens.banned_mask(first_id);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      peak.has_nan |= isnan(values[i]) ? 1 : 0;
      peak.largest = fmaxf(peak.largest, values[i]);
      // Ids come in ascending order, so the first of equals is the lowest.
      if ((banned >> i & 1) == 0 && values[i] > peak.allowed) {
        peak.allowed = values[i];
        peak.id = first_id + i;
      }
    }
  });
  if (threadIdx.x == 0) finish_fetch();
  return work.reduce(peak, [](const Peak& a, const Peak& b) -> Peak {
    const bool b_wins = b.allowed > a.allowed || (b.allowed == a.allowed && b.id < a.id);
    return {fmaxf(a.largest, b.largest), b_wins ? b.allowed : a.allowed, b_wins ? b.id : a.id,
            a.has_nan | b.has_nan};
  });
}

// Sum of e^(value - largest) over four values: f32 terms, added to a double by the callers.
__device__ inline double sum_of_exp(const float (&values)[4], float largest) {
  float sums[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = __expf(values[i] - largest);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Sum over all tokens of e^(logit - largest), for the log-probabilities.
template <bool kHeld, bool kChanges>
__device__ double sum_raw(const RowWork<kHeld, kChanges>& work, float largest) {
  double sum = 0.0;
  work.tokens.visit([&](int, const float(&values)[4]) { sum += sum_of_exp(values, largest); });
  return work.reduce(sum, [](double a, double b) { return a + b; });
}

// Writes the places of the num_top largest raw logits to shared.top of the first block, in order.
template <bool kHeld, bool kChanges>
__device__ void list_top(const RowWork<kHeld, kChanges>& work, float largest) {
  const auto for_each_token = [&](auto fn) {
    work.tokens.visit([&](int first_id, const float(&values)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (first_id + i >= work.call.vocab) continue;
        fn(values[i] - largest, place_of(values[i], first_id + i));
      }
    });
  };
  clear_histogram(work.shared, kCoarseBins);
  CoarseCounter counter(work.shared);
  for_each_token([&](float value, uint64_t) { counter.add(value); });
  counter.finish();
  ClusterBlocks::sync();
  list_first(work.shared, static_cast<uint32_t>(work.call.num_top), for_each_token);
  if (ClusterBlocks::rank() == 0 && static_cast<int>(threadIdx.x) < work.call.num_top) {
    work.shared.top[threadIdx.x] = work.shared.sorted[threadIdx.x];
  }
}

}  // namespace sluice::cuda
