// SampleArgs as plain pointers and sizes, which a CPU task or a CUDA kernel takes by value.
//
// Made by ops/{cpu,cuda}/sample. Thread rule: values.
#pragma once

#include <cstdint>

#include "ops/sample.h"

namespace sluice {

// Shapes and meaning are those of LogitAdjustments (ops/sample.h).
struct AdjustmentsCall {
  const int32_t* begin = nullptr;  // null: no adjustments
  const int32_t* ids = nullptr;
  const float* bias = nullptr;
  const float* repetition = nullptr;
  const float* penalty = nullptr;
  float* scratch = nullptr;
};

// Shapes and meaning are those of SampleArgs (ops/sample.h).
struct SampleCall {
  float* logits;
  const SampleRow* rows;
  const int32_t* suppressed;  // or null
  const int32_t* given;       // or null
  const int32_t* masks;       // or null
  AdjustmentsCall adjustments;
  int32_t* token_ids;
  float* logprobs;
  int32_t* top_token_ids;  // or null
  float* top_logprobs;
  int64_t num_rows;
  int32_t vocab;
  int32_t num_suppressed;
  int32_t num_words;  // of a mask
  int32_t num_top;
};

inline AdjustmentsCall make_adjustments_call(const LogitAdjustments& adjustments) {
  if (!adjustments.present()) return {};
  return {
      .begin = adjustments.begin.data<int32_t>(),
      .ids = adjustments.ids.data<int32_t>(),
      .bias = adjustments.bias.data<float>(),
      .repetition = adjustments.repetition.data<float>(),
      .penalty = adjustments.penalty.data<float>(),
      .scratch = adjustments.scratch.data<float>(),
  };
}

// REQUIRES: `args` passed the shape contract of `sample`.
inline SampleCall make_sample_call(const SampleArgs& args) {
  const bool suppresses = args.suppressed.present();
  const bool lists_top = args.top_token_ids.present();
  return {
      .logits = args.logits.data<float>(),
      .rows = args.rows.data<SampleRow>(),
      .suppressed = suppresses ? args.suppressed.data<int32_t>() : nullptr,
      .given = args.given.present() ? args.given.data<int32_t>() : nullptr,
      .masks = args.masks.present() ? args.masks.data<int32_t>() : nullptr,
      .adjustments = make_adjustments_call(args.adjustments),
      .token_ids = args.token_ids.data<int32_t>(),
      .logprobs = args.logprobs.data<float>(),
      .top_token_ids = lists_top ? args.top_token_ids.data<int32_t>() : nullptr,
      .top_logprobs = lists_top ? args.top_logprobs.data<float>() : nullptr,
      .num_rows = args.logits.dim(0),
      .vocab = static_cast<int32_t>(args.logits.dim(1)),
      .num_suppressed = suppresses ? static_cast<int32_t>(args.suppressed.dim(1)) : 0,
      .num_words = args.masks.present() ? static_cast<int32_t>(args.masks.dim(1)) : 0,
      .num_top = lists_top ? static_cast<int32_t>(args.top_token_ids.dim(1)) : 0,
  };
}

}  // namespace sluice
