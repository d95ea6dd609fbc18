// PolicyPair: one policy for prefill and one for decode ("streaming+quest"), as the engine holds
// them.
//
// Made by make_policies from a name. Each selects in its own phase; both hear of all keys that are
// written, since a decode policy has to know the keys of the prompt. Thread rule: as Policy.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "attention/policy.h"
#include "attention/policy_options.h"

namespace sluice {

// The largest passes that a pair must provide for. Made by engine/engine_plan.
struct PairLimits {
  int64_t max_decode_seqs = 0;   // sequences of a decode pass, one row each
  int64_t max_prefill_rows = 0;  // rows of one sequence in a prefill pass
  int64_t max_tokens = 0;        // of one sequence
};

class PolicyPair {
 public:
  // Errors: kUnsupported when a policy is not of the phase that it is given for.
  PolicyPair(std::string name, std::unique_ptr<Policy> prefill, std::unique_ptr<Policy> decode);

  const std::string& name() const { return name_; }
  Policy& of(Phase phase) const { return phase == Phase::kPrefill ? *prefill_ : *decode_; }

  // Puts what `wrap` makes of the decode policy into its place. Before `initialize`.
  // Errors: kUnsupported when that is not of decode.
  using Wrap = std::function<std::unique_ptr<Policy>(std::unique_ptr<Policy>)>;
  void wrap_decode(const Wrap& wrap);

  // Whether block_ids must be given in passes: where one of the two selects.
  bool needs_block_ids(const KvBlockShape& block) const;
  bool capturable() const { return prefill_->capturable() && decode_->capturable(); }

  SelectionRule rule(Phase phase, const KvBlockShape& block) const { return of(phase).rule(block); }

  // The sum of both.
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks, const PairLimits& limits) const;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PairLimits& limits);

  void on_keys_written(Stream& stream, const WrittenKv& written);

 private:
  std::string name_;
  std::unique_ptr<Policy> prefill_;
  std::unique_ptr<Policy> decode_;
};

// Makes what `sparse_policy` names: one policy for both phases, or "PREFILL+DECODE".
// Errors: kInvalidArgument naming the value and the names there are, a phase that a policy does not
// do, and options that neither policy uses.
std::unique_ptr<PolicyPair> make_policies(std::string_view name, const SparseOptions& options = {});

}  // namespace sluice
