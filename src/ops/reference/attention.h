// Attention in double precision, written from the equation. Used by tests only.
// Thread rule: a pure function over host-readable memory.
#pragma once

#include <vector>

#include "ops/attention/attention.h"

namespace sluice::reference {

// What `out` must be, [num_rows, num_q_heads, head_dim], for a call with first && last: the softmax
// over all visible tokens at once, no tiles and no running maximum. Page lists, tile masks and
// columns are applied token by token. A head that sees no token gives zeros.
std::vector<double> attention(const AttentionArgs& args);

// The log-sum-exp of every row and query head, [num_rows, num_q_heads]; -inf where nothing is seen.
std::vector<double> attention_log_sum_exp(const AttentionArgs& args);

}  // namespace sluice::reference
