// The score of a given token from a row of logits.
//
// Used by LlmEngine::score. Thread rule: pure function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/request_output.h"

namespace sluice {

// Log-softmax of `logits` at `token_id`, and the likeliest token (the lowest id of equals).
// The sum is in double and in the order of ids, so that a row's score depends on nothing else.
// Errors: kModel naming `position` when the logits have NaN, +inf or no finite number.
// REQUIRES: an id of the vocabulary.
TokenScore score_row(std::span<const float> logits, int32_t token_id, size_t position);

}  // namespace sluice
