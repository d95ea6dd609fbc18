// PolicyPair: the engine's policies, one for prefill and one for decode ("streaming+quest").
//
// Made by make_policies from a name. Each selects in its own phase; both get all keys that are
// written, since a decode policy needs summaries of the prompt. Thread rule: as Policy.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "attention/mass_audit.h"
#include "attention/policy.h"
#include "attention/policy_options.h"

namespace sluice {

// The largest passes, by which the policies allocate memory. Made by engine/plan.
struct PairLimits {
  int64_t max_decode_seqs = 0;   // sequences of a decode pass, one row each; prefill has no more
  int64_t max_prefill_rows = 0;  // rows of one sequence in a prefill pass
  int64_t max_tokens = 0;        // of one sequence
  int64_t num_q_heads = 0;
  HeadShare share = {};
  bool counts_reads = false;  // Policy::page_reads is asked for
  bool has_zones = false;     // queries differ by zones of keys
};

// The rules of all kinds of passes, made once: passes ask often.
struct PassRules {
  SelectionRule prefill;
  SelectionRule decode;
  SelectionRule verify;

  const SelectionRule& of(PassKind kind) const {
    if (kind.is_verify) return verify;
    return kind.is_prefill ? prefill : decode;
  }
};

class PolicyPair {
 public:
  // Errors: kUnsupported if a policy has another phase than the one it is given for.
  PolicyPair(std::string name, std::unique_ptr<Policy> prefill, std::unique_ptr<Policy> decode);

  const std::string& name() const { return name_; }
  // Of a verify pass: the policy full.
  Policy& of(PassKind kind) const {
    if (kind.is_verify) return *verify_;
    return kind.is_prefill ? *prefill_ : *decode_;
  }
  Policy& prefill() const { return *prefill_; }
  Policy& decode() const { return *decode_; }

  // Replaces the decode policy by `wrap` of it. REQUIRES: before `initialize`.
  // Errors: kUnsupported if the result is no decode policy.
  using Wrap = std::function<std::unique_ptr<Policy>(std::unique_ptr<Policy>)>;
  void wrap_decode(const Wrap& wrap);

  // Makes prefill measure the mass that its masks capture. REQUIRES: before `initialize`.
  void add_audit() { audit_ = std::make_unique<MassAudit>(); }
  // Null without an audit.
  MassAudit* audit() const { return audit_.get(); }

  // Whether passes must have block_ids: true if one of the two selects.
  bool needs_block_ids(const KvBlockShape& block) const;
  bool capturable() const { return prefill_->capturable() && decode_->capturable(); }

  SelectionRule rule(PassKind kind, const KvBlockShape& block) const {
    return of(kind).rule(block);
  }
  PassRules rules(const KvBlockShape& block) const;

  // Sums of both policies and of the audit.
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks, const PairLimits& limits) const;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PairLimits& limits);

  // Whether one of the two keeps summaries of keys. REQUIRES: initialized.
  bool has_summaries() const { return has_summaries_; }
  void on_keys_written(Stream& stream, const WrittenKv& written);

 private:
  std::string name_;
  std::unique_ptr<Policy> prefill_;
  std::unique_ptr<Policy> decode_;
  std::unique_ptr<Policy> verify_;
  std::unique_ptr<MassAudit> audit_;
  bool has_summaries_ = false;
};

// Makes the policies named by `sparse_policy`: one name for both phases, or "PREFILL+DECODE".
// Errors: kInvalidArgument for an unknown name (listing all names), a phase that a policy does not
// support, and options that neither policy uses.
std::unique_ptr<PolicyPair> make_policies(std::string_view name, const SparseOptions& options = {});

}  // namespace sluice
