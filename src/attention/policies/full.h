// full: the policy that selects everything. The baseline every other policy is compared with.
#pragma once

#include "attention/policy.h"

namespace sluice {

class FullPolicy final : public Policy {
 public:
  explicit FullPolicy(const PolicyOptions& = {}) {}

  std::string_view name() const override { return "full"; }
  bool supports_prefill() const override { return true; }
  bool supports_decode() const override { return true; }
  bool makes_lists(Phase) const override { return false; }
  bool capturable() const override { return true; }

 private:
  Selection do_select_blocks(Stream&, const SelectInput&) override { return {}; }
};

}  // namespace sluice
