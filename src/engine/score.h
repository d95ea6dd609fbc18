// The score of a given token from a row of logits.
//
// Used by LlmEngine::score. Thread rule: pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/request_output.h"

namespace sluice {

// Natural-log softmax of `logits` (f32 [vocab]) at `token_id`, and the likeliest token (the lowest
// id among equals). Sums in double and in the order of ids, so the result depends on this row
// alone.
TokenScore score_row(std::span<const float> logits, int32_t token_id, size_t position);

}  // namespace sluice
