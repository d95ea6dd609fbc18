// Compares policies with the speculative method, and passes on what they say of themselves.
#include "engine/plan/policy_checks.h"

#include <string>

#include "core/error.h"
#include "engine/speculation/draft_limits.h"

namespace sluice {

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

}  // namespace sluice
