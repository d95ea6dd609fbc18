// PolicyPair: one policy for prefill, another for decode ("streaming+quest").
//
// Made by make_policy from "PREFILL+DECODE". Each selects in its phase alone; both hear of all keys
// that are written, since a decode policy has to know the keys of the prompt. Thread rule: as
// Policy.
#pragma once

#include <memory>
#include <string>

#include "attention/policy.h"

namespace sluice {

class PolicyPair final : public Policy {
 public:
  // Errors: kInvalidArgument when one of them does not support its phase; says what to write
  // instead.
  PolicyPair(std::unique_ptr<Policy> prefill, std::unique_ptr<Policy> decode);

  std::string_view name() const override { return name_; }
  bool supports_prefill() const override { return true; }
  bool supports_decode() const override { return true; }
  bool makes_lists(Phase phase) const override { return of(phase).makes_lists(phase); }
  bool wants_block_ids() const override {
    return prefill_->wants_block_ids() || decode_->wants_block_ids();
  }
  bool capturable() const override;

  void check_layout(const KvBlockShape& block) const override;
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;
  void on_prefill_offload(Stream& stream, const WrittenKv& written) override;
  void on_decode_offload(Stream& stream, const WrittenKv& written) override;
  void reset(SequenceId sequence) override;

  std::optional<int64_t> num_selected_tokens(Phase phase, int64_t position) const override {
    return of(phase).num_selected_tokens(phase, position);
  }
  int64_t max_selected_tokens(Phase phase, int64_t num_tokens) const override {
    return of(phase).max_selected_tokens(phase, num_tokens);
  }
  bool selects_all(Phase phase, int64_t num_tokens) const override {
    return of(phase).selects_all(phase, num_tokens);
  }
  bool may_select(const HistoryRange& range) const override {
    return of(range.phase).may_select(range);
  }

 private:
  Selection do_select_blocks(Stream& stream, const SelectInput& input) override;
  Policy& of(Phase phase) const { return phase == Phase::kPrefill ? *prefill_ : *decode_; }

  std::unique_ptr<Policy> prefill_;
  std::unique_ptr<Policy> decode_;
  std::string name_;
};

}  // namespace sluice
