// Compares policies with the speculative method, and passes on what they say of themselves.
#include "engine/plan/policy_checks.h"

#include <string>

#include "attention/policy_names.h"
#include "core/error.h"
#include "engine/speculation/draft_limits.h"

namespace sluice {
namespace {

// Past the first chunk a row has three queries, each for the keys of one zone. A policy that scores
// all keys with the first one would choose by numbers that attention does not compute.
// Errors: kUnsupported for a policy that chooses by the queries of a row's own chunk alone.
void require_zones(const Policy& policy, int64_t chunk_tokens) {
  if (policy.knows_zones()) return;
  fail(ErrorCode::kUnsupported,
       "sparse_policy '{}' does not choose by the queries of dual chunk attention in {}; take "
       "'full', 'xattention', 'avgpool', 'minference', 'flexprefill' or 'sampled' with "
       "sparse_column_tokens 0 for prefill and 'full', 'quest' or 'streaming' for decode, or a "
       "max_model_len of at most {} tokens, the model's first chunk",
       policy.name(), phase_name(policy.phase()), chunk_tokens);
}

// Errors: those of require_zones; kUnsupported for the audit, which measures by a row's own
// queries; kInvalidArgument for scopes that do not divide a chunk.
void check_zone_policies(const PlanInput& input, const KvBlockShape& block) {
  const int64_t chunk_tokens = input.config.dual_chunk.chunk_tokens();
  for (const Policy* policy : {&input.policies.prefill(), &input.policies.decode()}) {
    if (policy->rule(block).selects()) require_zones(*policy, chunk_tokens);
  }
  const Policy& prefill = input.policies.prefill();
  if (prefill.rule(block).selects() && chunk_tokens % prefill.prefill_scope_tokens() != 0) {
    fail(
        ErrorCode::kInvalidArgument,
        "sparse_policy '{}' chooses for segments that do not divide the chunks of {} tokens of the "
        "model's dual chunk attention; take a power of two as sparse_segment_tokens that does, or "
        "a max_model_len of at most {} tokens",
        prefill.name(), chunk_tokens, chunk_tokens);
  }
  if (input.policies.audit() == nullptr) return;
  fail(ErrorCode::kUnsupported,
       "sparse_audit does not know the queries of dual chunk attention; leave it out, or take a "
       "max_model_len of at most {} tokens, the model's first chunk",
       chunk_tokens);
}

}  // namespace

// What a policy reads beside the options; a warning if no option names it.
void add_policy_note(const EngineOptions& options, const PolicyPair& policies, EnginePlan& plan) {
  const std::string note = policies.prefill().note();
  if (note.empty()) return;
  (options.sparse.profile ? plan.memory.notes : plan.memory.warnings).push_back(note);
}

// The verifying pass attends to everything, so the decode policy is the one that drafts, or "full".
void check_method(const EngineOptions& options, const PolicyPair& policies,
                  const KvBlockShape& block) {
  const SpeculativeMethod method = resolve_speculative(options.speculative).method;
  if (method == SpeculativeMethod::kNone) return;
  const bool selects = policies.decode().rule(block).selects();
  if (selects == drafts_sparsely(method)) return;
  if (selects) {
    fail(ErrorCode::kUnsupported,
         "speculative_method '{}' verifies with full attention, but sparse_policy is '{}'; use "
         "'sparse' or 'ngram+sparse', which give the text of 'full', or the policy 'full' for "
         "decode",
         speculative_method_name(method), policies.name());
  }
  fail(ErrorCode::kUnsupported,
       "speculative_method '{}' drafts with the policy for decode, but sparse_policy is '{}', "
       "which attends to everything there; name one that selects, as in 'full+quest'",
       speculative_method_name(method), policies.name());
}

bool has_zones(const ModelConfig& config, int64_t max_model_len) {
  return config.dual_chunk.present() && max_model_len > config.dual_chunk.chunk_tokens();
}

void check_zones(const PlanInput& input, const EnginePlan& plan) {
  const int64_t chunk_tokens = input.config.dual_chunk.chunk_tokens();
  if (!has_zones(input.config, plan.max_model_len)) return;
  const KvBlockShape& block = plan.kv_layout.block;
  if (chunk_tokens % block.block_tokens != 0 || chunk_tokens % kMaskTileTokens != 0) {
    fail(ErrorCode::kInvalidArgument,
         "block_size is {}, but the chunks of the model's dual chunk attention have {} tokens, "
         "which blocks must divide; choose a power of two that does, or a max_model_len of at most "
         "{}",
         block.block_tokens, chunk_tokens, chunk_tokens);
  }
  check_zone_policies(input, block);
}

}  // namespace sluice
