// Named configurations of sparse attention: short forms that stand for a policy with options, and
// the list that comparisons run.
//
// Used by subcommand.h, which expands --sparse-policy for every command with an engine, and by
// policy_list.h. The engine knows no short forms. Thread rule: pure functions.
#pragma once

#include <array>
#include <string>

#include "cli/invocation.h"
#include "sluice/sparse_options.h"

namespace sluice::cli {

// What comparisons of policies run unless told otherwise; "full" is the reference.
inline constexpr std::array kComparedPolicies = {"full", "minference+quest", "aggressive",
                                                 "sampled+quest"};

// Replaces a short form in `sparse->policy` by the policy and the options that it stands for; other
// names stay as they are. Options that the form does not set are kept.
//
//   aggressive  xattention+quest with coverage 0.8, stride 16 and topk 512
//
// Returns what it stands for, "aggressive: xattention+quest, topk 512, ..."; "" for other names.
// Errors: kInvalidArgument if an option that the form sets has another value, naming it as `given`
// has it.
std::string expand_policy(SparseOptions* sparse, const Given& given);

// "short forms: aggressive (xattention+quest, topk 512, ...)".
std::string short_forms_help();

// The options that differ from their defaults, without the policy: "topk 512, page 32"; "default"
// if there are none.
std::string describe_sparse_options(const SparseOptions& sparse);

}  // namespace sluice::cli
