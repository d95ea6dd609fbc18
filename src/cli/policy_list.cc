// Distributes options over the policies of a list.
#include "cli/policy_list.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "attention/policy_names.h"
#include "attention/policy_pair.h"
#include "cli/options/named_policies.h"
#include "core/error.h"
#include "core/option_check.h"

namespace sluice::cli {
namespace {

// The rows with a value of their own in `options`, the policy's name left out.
std::vector<const OptionRow<SparseOptions>*> given_rows(const SparseOptions& options) {
  std::vector<const OptionRow<SparseOptions>*> rows;
  for (const auto& row : kSparseOptionRows) {
    if (row.facts.kind != OptionKind::kText && row.get(options) != row.get({})) {
      rows.push_back(&row);
    }
  }
  return rows;
}

// The policy of a name, which may be a short form.
std::string policy_of(const std::string& name) {
  SparseOptions sparse;
  sparse.policy = name;
  expand_policy(&sparse, {});
  return sparse.policy;
}

}  // namespace

std::vector<NamedPolicy> policy_list(const std::vector<std::string>& names,
                                     const SparseOptions& common) {
  std::vector<NamedPolicy> policies;
  const auto given = given_rows(common);
  for (const std::string& name : names) {
    if (std::count(names.begin(), names.end(), name) > 1) {
      fail(ErrorCode::kInvalidArgument, "--policies: '{}' is given twice; leave one out", name);
    }
    NamedPolicy named{.name = name, .sparse = {}};
    named.sparse.policy = name;
    for (const auto* row : given) {
      if (policies_use(policy_of(name), row->facts.name)) {
        row->set(named.sparse, row->get(common));
      }
    }
    expand_policy(&named.sparse, {});
    make_policies(named.sparse.policy, named.sparse);  // refuses what it would refuse later
    policies.push_back(std::move(named));
  }
  for (const auto* row : given) {
    const bool is_used = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return policies_use(policy_of(name), row->facts.name);
    });
    if (is_used) continue;
    fail(ErrorCode::kInvalidArgument,
         "{} is given, but none of the policies uses it: {}; leave it out", long_option(row->facts),
         fmt::join(names, ", "));
  }
  return policies;
}

std::string describe_policy(const SparseOptions& sparse) {
  const std::string options = describe_sparse_options(sparse);
  return sparse.policy + (options == "default" ? "" : ", " + options);
}

std::vector<std::string> policy_lines(const std::vector<NamedPolicy>& policies) {
  std::vector<std::string> lines;
  for (const NamedPolicy& policy : policies) {
    const std::string description = describe_policy(policy.sparse);
    if (description == policy.name) continue;
    const bool is_short_form = policy.name != policy.sparse.policy;
    lines.push_back((is_short_form ? policy.name + ": " : "") + description);
  }
  return lines;
}

}  // namespace sluice::cli
