// The configurations of a comparison of sparse policies: names with the options that each uses.
//
// Used by `sluice-eval needle`, `sluice-lab sparse` and `sluice-lab recall`, whose --policies is
// such a list. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "sluice/sparse_options.h"

namespace sluice::cli {

// One configuration.
struct NamedPolicy {
  std::string name;      // as it was asked for: "aggressive"
  SparseOptions sparse;  // short forms are expanded (options/named_policies.h)
};

// A configuration for each name. Each option set in `common` goes to the policies that use it;
// `common.policy` has no effect.
// Errors: kInvalidArgument for an unknown name or one given twice, an option that none of them
// uses, one that contradicts a short form, and what make_policies refuses.
std::vector<NamedPolicy> policy_list(const std::vector<std::string>& names,
                                     const SparseOptions& common);

// "xattention+quest, topk 512, coverage 0.8": the policy and the options that differ from defaults.
std::string describe_policy(const SparseOptions& sparse);

// "aggressive: xattention+quest, ..." or "sampled+quest, threshold 0" for each configuration whose
// name does not say all.
std::vector<std::string> policy_lines(const std::vector<NamedPolicy>& policies);

}  // namespace sluice::cli
