// full: the policy that selects everything, for both phases. Other policies are compared with it.
//
// Made by make_policies; the default of sparse_policy. Thread rule: as Policy.
#pragma once

#include <span>
#include <string_view>

#include "attention/policy.h"
#include "attention/policy_options.h"

namespace sluice {

class FullPolicy final : public Policy {
 public:
  static constexpr std::span<const std::string_view> kOptions = {};

  FullPolicy(Phase phase, const SparseOptions&) : Policy("full", phase) {}

  SelectionRule rule(const KvBlockShape&) const override { return {}; }
  bool capturable() const override { return true; }
  Selection select(Stream&, const SelectInput&) override { return {}; }
};

}  // namespace sluice
