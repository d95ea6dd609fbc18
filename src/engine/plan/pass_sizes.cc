// Defaults by device and mode.
#include "engine/plan/pass_sizes.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "engine/plan/memory_fit.h"
#include "engine/plan/validate_options.h"

namespace sluice {
namespace {

// Rows of one prefill pass: what was asked for, else a whole prompt (layer-wise) or what suits the
// device.
int64_t choose_pass_tokens(const EngineOptions& options, const PlanTraits& traits,
                           const EnginePlan& plan) {
  int64_t tokens = 0;
  if (options.max_num_batched_tokens) {
    tokens = *options.max_num_batched_tokens;
  } else if (plan.kv_offload == KvOffload::kLayerwise) {
    tokens = plan.max_model_len;
  } else {
    const bool is_chunked = plan.kv_offload == KvOffload::kChunked;
    tokens = is_chunked ? traits.chunk_tokens : traits.pass_tokens;
    tokens = std::min(std::max<int64_t>(tokens, options.prefill_chunk_tokens.value_or(0)),
                      plan.max_model_len);
  }
  return round_up_to_block(tokens, plan);
}

}  // namespace

void choose_pass_sizes(const EngineOptions& options, const PlanTraits& traits, EnginePlan& plan) {
  const int64_t pass_tokens = choose_pass_tokens(options, traits, plan);
  const int64_t asked_chunk = options.prefill_chunk_tokens.value_or(pass_tokens);
  const int64_t chunk_tokens = round_up_to_block(asked_chunk, plan);
  if (chunk_tokens > pass_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "prefill_chunk_tokens is {}, but a pass takes {} tokens; lower it or raise "
         "max_num_batched_tokens",
         asked_chunk, pass_tokens);
  }
  if (chunk_tokens != asked_chunk) {
    plan.notes.push_back(fmt::format("prefill_chunk_tokens is {} instead of {}: whole KV blocks",
                                     chunk_tokens, asked_chunk));
  }
  plan.scheduler = {.max_num_seqs = max_num_seqs(options),
                    .max_num_batched_tokens = pass_tokens,
                    .prefill_chunk_tokens = chunk_tokens};
  const int64_t max_rows = std::max<int64_t>(pass_tokens, max_num_seqs(options));
  plan.decoder = {
      .max_rows = max_rows, .max_logit_rows = max_num_seqs(options), .row_tile = traits.row_tile};
  plan.min_watched_rows = traits.min_watched_rows;
  plan.fixed_decode_shapes = traits.has_decode_shapes;
  plan.max_decode_graphs =
      traits.has_decode_shapes && !options.enforce_eager ? kMaxDecodeGraphs : 0;
  plan.pass = {.max_rows = max_rows,
               .max_seqs = max_num_seqs(options),
               .max_blocks_per_seq =
                   blocks_for_tokens(plan.max_model_len, plan.kv_layout.block.block_tokens)};
}

int64_t round_up_to_block(int64_t tokens, const EnginePlan& plan) {
  const int64_t block_tokens = plan.kv_layout.block.block_tokens;
  return offloads(plan)
             ? blocks_for_tokens(tokens, plan.kv_layout.block.block_tokens) * block_tokens
             : tokens;
}

}  // namespace sluice
