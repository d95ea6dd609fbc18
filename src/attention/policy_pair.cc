// Passes calls on to both policies, each with the sizes of its own phase.
#include "attention/policy_pair.h"

#include <utility>

#include "attention/policies/full.h"
#include "core/error.h"

namespace sluice {
namespace {

// A prefill selection is for one sequence at a time; a decode selection has one row per sequence.
PolicyLimits prefill_limits(const PairLimits& limits) {
  return {.max_seqs = 1,
          .max_rows = limits.max_prefill_rows,
          .max_tokens = limits.max_tokens,
          .num_q_heads = limits.num_q_heads,
          .share = limits.share,
          .has_zones = limits.has_zones};
}

PolicyLimits decode_limits(const PairLimits& limits) {
  return {.max_seqs = limits.max_decode_seqs,
          .max_rows = 1,
          .max_tokens = limits.max_tokens,
          .num_q_heads = limits.num_q_heads,
          .share = limits.share,
          .counts_reads = limits.counts_reads};
}

// The audit has tallies of all sequences of a prefill pass.
PolicyLimits audit_limits(const PairLimits& limits) {
  PolicyLimits all = prefill_limits(limits);
  all.max_seqs = limits.max_decode_seqs;
  return all;
}

// Checks that a policy has the phase it is used for.
void require_phase(const Policy& policy, Phase phase) {
  if (policy.phase() == phase) return;
  fail(ErrorCode::kUnsupported,
       "sparse policy '{}' does not support {}, only {}; use it for that phase and 'full' for {}",
       policy.name(), phase_name(phase), phase_name(policy.phase()), phase_name(phase));
}

}  // namespace

PolicyPair::PolicyPair(std::string name, std::unique_ptr<Policy> prefill,
                       std::unique_ptr<Policy> decode)
    : name_(std::move(name)),
      prefill_(std::move(prefill)),
      decode_(std::move(decode)),
      verify_(std::make_unique<FullPolicy>(Phase::kDecode, SparseOptions())) {
  require_phase(*prefill_, Phase::kPrefill);
  require_phase(*decode_, Phase::kDecode);
  SLUICE_CHECK(prefill_->prefill_scope_tokens() > 0 && prefill_->prefill_tail_tokens() >= 0,
               "'{}': scope {}, tail {}", prefill_->name(), prefill_->prefill_scope_tokens(),
               prefill_->prefill_tail_tokens());
}

void PolicyPair::wrap_decode(const Wrap& wrap) {
  decode_ = wrap(std::move(decode_));
  require_phase(*decode_, Phase::kDecode);
}

PassRules PolicyPair::rules(const KvBlockShape& block) const {
  return {.prefill = prefill_->rule(block),
          .decode = decode_->rule(block),
          .verify = verify_->rule(block)};
}

bool PolicyPair::needs_block_ids(const KvBlockShape& block) const {
  return prefill_->rule(block).selects() || decode_->rule(block).selects();
}

PolicyMemory PolicyPair::memory(const KvLayout& layout, int32_t num_blocks,
                                const PairLimits& limits) const {
  const PolicyMemory a = prefill_->memory(layout, num_blocks, prefill_limits(limits));
  const PolicyMemory b = decode_->memory(layout, num_blocks, decode_limits(limits));
  PolicyMemory of_audit;
  if (audit_) of_audit = audit_->memory(layout, audit_limits(limits));
  return {.summary_bytes = a.summary_bytes + b.summary_bytes,
          .list_bytes = a.list_bytes + b.list_bytes + of_audit.list_bytes,
          .pinned_bytes = a.pinned_bytes + b.pinned_bytes + of_audit.pinned_bytes};
}

void PolicyPair::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                            const PairLimits& limits) {
  prefill_->initialize(device, layout, num_blocks, prefill_limits(limits));
  decode_->initialize(device, layout, num_blocks, decode_limits(limits));
  has_summaries_ = memory(layout, num_blocks, limits).summary_bytes > 0;
  if (audit_) audit_->initialize(device, layout, audit_limits(limits));
}

void PolicyPair::on_keys_written(Stream& stream, const WrittenKv& written) {
  prefill_->on_keys_written(stream, written);
  decode_->on_keys_written(stream, written);
}

}  // namespace sluice
