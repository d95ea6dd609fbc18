// The largest logit and the log-sum-exp of each row, by all threads of a stream.
//
// Used by sample.cc. Decode often has a single row of a large vocabulary, so the threads share a
// row. Thread rule: called by the stream's worker inside a task.
#pragma once

#include <cstdint>
#include <vector>

#include "device/host/thread_team.h"
#include "ops/cpu/rows/kernels.h"

namespace sluice::cpu {

struct RowStats {
  int32_t top_id = 0;    // of the largest logit, the lowest among equals; vocab if there is none
  float largest = 0.0f;  // infinity if there is none
  double log_sum = 0.0;  // ln(sum of e^(logit - largest)); NaN exactly when a logit is NaN
};

// The id of the largest of logits[0, count), lowest id first among equals; `count` if there is
// none.
int32_t argmax(const float* logits, int32_t count);

// Shapes: logits [num_rows, vocab]; one RowStats for each row. The order of summation depends on
// the vocabulary alone. Memory: kept by the calling thread for its next call.
const std::vector<RowStats>& row_stats(ThreadTeam& team, const float* logits, int64_t num_rows,
                                       int32_t vocab, const RowKernels& kernels);

}  // namespace sluice::cpu
