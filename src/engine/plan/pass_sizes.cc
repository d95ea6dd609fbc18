// Defaults by device and mode.
#include "engine/plan/pass_sizes.h"

#include <algorithm>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "core/error.h"
#include "engine/plan/validate_options.h"

namespace sluice {
namespace {

// Rows of a layer-wise pass that continues an older prefix. Carrying the softmax state of a million
// rows would take gigabytes; a longer continuation goes in several passes.
constexpr int64_t kLayerwiseStateRows = 8192;

// Passes over offloaded KV are whole blocks, because spans begin at block borders.
int64_t round_up(int64_t tokens, const PassNeeds& needs) {
  if (needs.kv_offload == KvOffload::kOff) return tokens;
  return blocks_for_tokens(tokens, needs.block_tokens) * needs.block_tokens;
}

// Spans begin at multiples of this.
int64_t span_align_tokens(const PassNeeds& needs) {
  const bool stages_blocks = needs.kv_offload != KvOffload::kOff;
  return std::lcm(stages_blocks ? int64_t{needs.block_tokens} : 1, needs.scope_tokens);
}

// The shortest pass in which every span fits: a prompt shorter than the alignment is one span.
int64_t min_span_tokens(const PassNeeds& needs) {
  return std::min(span_align_tokens(needs), round_up(needs.max_model_len, needs));
}

bool selects_for_prompts(const PassNeeds& needs) {
  return needs.scope_tokens >= kPromptScopeTokens;
}

// Checks that a length that was given for passes or chunks has room for a span. Shorter ones would
// change what the policy selects.
void check_span_fits(const char* option, int64_t asked, int64_t tokens, const PassNeeds& needs) {
  const int64_t least = min_span_tokens(needs);
  if (tokens >= least) return;
  if (selects_for_prompts(needs)) {
    fail(ErrorCode::kInvalidArgument,
         "{0} is {1}, but with sparse_segment_tokens 0 a prompt is one pass, and prompts may have "
         "{2} tokens; give at least {2}, leave it out, lower max_model_len, or take segments",
         option, asked, least);
  }
  const std::string blocks =
      span_align_tokens(needs) == needs.scope_tokens
          ? ""
          : fmt::format(" (passes also end at whole blocks of {})", needs.block_tokens);
  fail(ErrorCode::kInvalidArgument,
       "{} is {}, but the sparse policy selects for {} tokens of a prompt together{}; give at "
       "least {}, or leave it out",
       option, asked, needs.scope_tokens, blocks, least);
}

// Rows of one prefill pass: the option; else a whole prompt (layer-wise), or the device's default.
int64_t choose_pass_tokens(const EngineOptions& options, const PlanTraits& traits,
                           const PassNeeds& needs) {
  if (const auto& asked = options.max_num_batched_tokens) {
    const int64_t tokens = round_up(*asked, needs);
    check_span_fits("max_num_batched_tokens", *asked, tokens, needs);
    return tokens;
  }
  if (needs.kv_offload == KvOffload::kLayerwise) return round_up(needs.max_model_len, needs);
  const bool is_chunked = needs.kv_offload == KvOffload::kChunked;
  const int64_t usual = std::max<int64_t>(is_chunked ? traits.chunk_tokens : traits.pass_tokens,
                                          span_align_tokens(needs));
  const int64_t tokens = std::max<int64_t>(usual, options.prefill_chunk_tokens.value_or(0));
  return round_up(std::min(tokens, needs.max_model_len), needs);
}

// Rows whose softmax state can be carried: every row of a chunked pass has history. If a prompt is
// one pass, only rows of decode have one.
int64_t choose_state_rows(const PassNeeds& needs, int64_t pass_tokens, int64_t num_seqs) {
  const int64_t decode_rows = num_seqs + needs.draft_rows;
  if (selects_for_prompts(needs)) return decode_rows;
  const bool is_layerwise = needs.kv_offload == KvOffload::kLayerwise;
  const int64_t usual = std::max(round_up(kLayerwiseStateRows, needs), span_align_tokens(needs));
  const int64_t prefill_rows = is_layerwise ? std::min(usual, pass_tokens) : pass_tokens;
  return std::max(prefill_rows, decode_rows);
}

SchedulerLimits choose_scheduler_limits(const EngineOptions& options, const PlanTraits& traits,
                                        const PassNeeds& needs, int64_t pass_tokens) {
  const int64_t asked_chunk = options.prefill_chunk_tokens.value_or(pass_tokens);
  const int64_t chunk_tokens = round_up(asked_chunk, needs);
  if (chunk_tokens > pass_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "prefill_chunk_tokens is {}, but a pass takes {} tokens; lower it or raise "
         "max_num_batched_tokens",
         asked_chunk, pass_tokens);
  }
  check_span_fits("prefill_chunk_tokens", asked_chunk, chunk_tokens, needs);
  SchedulerLimits limits{.max_num_seqs = max_num_seqs(options),
                         .max_num_batched_tokens = pass_tokens,
                         .prefill_chunk_tokens = chunk_tokens,
                         .span_align_tokens = span_align_tokens(needs)};
  const int64_t state_align = std::lcm(limits.span_align_tokens, traits.state_chunk_tokens);
  if (needs.has_states && chunk_tokens >= state_align) limits.state_align_tokens = state_align;
  if (needs.kv_offload != KvOffload::kOff) {
    limits.row_block_tokens = needs.block_tokens;
    limits.max_rows_with_history = choose_state_rows(needs, pass_tokens, max_num_seqs(options));
  }
  return limits;
}

}  // namespace

PassSizes choose_pass_sizes(const EngineOptions& options, const PlanTraits& traits,
                            const PassNeeds& needs) {
  const int64_t pass_tokens = choose_pass_tokens(options, traits, needs);
  const int64_t num_seqs = max_num_seqs(options);
  // A decode pass has one row per sequence and draft, which may be more than a prefill pass has.
  const int64_t decode_rows = num_seqs + needs.draft_rows;
  const int64_t max_rows = std::max(pass_tokens, decode_rows);
  const bool has_zones = needs.zone_chunk_tokens > 0;
  const bool has_graphs = traits.has_decode_shapes && !options.enforce_eager;
  return {
      .scheduler = choose_scheduler_limits(options, traits, needs, pass_tokens),
      .decoder = {.max_rows = max_rows,
                  .max_logit_rows = decode_rows,
                  .row_tile = traits.row_tile,
                  .has_zones = has_zones},
      .limits = {.max_rows = max_rows,
                 .max_seqs = num_seqs,
                 .max_blocks_per_seq = blocks_for_tokens(needs.max_model_len, needs.block_tokens),
                 .max_draft_rows = needs.draft_rows,
                 .zone_rows = has_zones && traits.zones_carry_state ? max_rows : 0,
                 .chunk_tokens = needs.zone_chunk_tokens,
                 .num_chunk_borders =
                     has_zones ? needs.max_model_len / needs.zone_chunk_tokens + 2 : 0,
                 .has_states = needs.has_states},
      .min_watched_rows = traits.min_watched_rows,
      .fixed_decode_shapes = traits.has_decode_shapes,
      .max_decode_graphs = has_graphs ? kMaxDecodeGraphs : 0};
}

}  // namespace sluice
