// Two policies, each told of its own phase's sizes.
#include "attention/policies/pair.h"

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

PolicyLimits prefill_only(PolicyLimits limits) {
  limits.max_decode_seqs = 0;
  return limits;
}

PolicyLimits decode_only(PolicyLimits limits) {
  limits.max_prefill_rows = 0;
  return limits;
}

void require_phase(const Policy& policy, Phase phase, const std::string& pair,
                   const std::string& remedy) {
  if (policy.supports(phase)) return;
  fail(ErrorCode::kInvalidArgument,
       "sparse_policy is '{}', but '{}' does not support {}; write '{}'", pair, policy.name(),
       phase_name(phase), remedy);
}

}  // namespace

PolicyPair::PolicyPair(std::unique_ptr<Policy> prefill, std::unique_ptr<Policy> decode)
    : prefill_(std::move(prefill)),
      decode_(std::move(decode)),
      name_(fmt::format("{}+{}", prefill_->name(), decode_->name())) {
  const bool ends_full = decode_->name() == "full";
  require_phase(*prefill_, Phase::kPrefill, name_,
                ends_full ? "full" : fmt::format("full+{}", decode_->name()));
  require_phase(*decode_, Phase::kDecode, name_, fmt::format("{}+full", prefill_->name()));
}

// Prefill passes are never recorded, but the prefill policy hears of decoded keys too.
bool PolicyPair::capturable() const { return prefill_->capturable() && decode_->capturable(); }

void PolicyPair::check_layout(const KvBlockShape& block) const {
  prefill_->check_layout(block);
  decode_->check_layout(block);
}

PolicyMemory PolicyPair::memory(const KvLayout& layout, int32_t num_blocks,
                                const PolicyLimits& limits) const {
  const PolicyMemory a = prefill_->memory(layout, num_blocks, prefill_only(limits));
  const PolicyMemory b = decode_->memory(layout, num_blocks, decode_only(limits));
  return {.summary_bytes = a.summary_bytes + b.summary_bytes,
          .list_bytes = a.list_bytes + b.list_bytes};
}

void PolicyPair::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                            const PolicyLimits& limits) {
  prefill_->initialize(device, layout, num_blocks, prefill_only(limits));
  decode_->initialize(device, layout, num_blocks, decode_only(limits));
}

void PolicyPair::on_prefill_offload(Stream& stream, const WrittenKv& written) {
  prefill_->on_prefill_offload(stream, written);
  decode_->on_prefill_offload(stream, written);
}

void PolicyPair::on_decode_offload(Stream& stream, const WrittenKv& written) {
  prefill_->on_decode_offload(stream, written);
  decode_->on_decode_offload(stream, written);
}

void PolicyPair::reset(SequenceId sequence) {
  prefill_->reset(sequence);
  decode_->reset(sequence);
}

Selection PolicyPair::do_select_blocks(Stream& stream, const SelectInput& input) {
  return of(input.phase).select_blocks(stream, input);
}

}  // namespace sluice
