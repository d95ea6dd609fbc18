// make_policies: the table of policies with their names, phases and options, and its checks.
#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "attention/policies/avgpool.h"
#include "attention/policies/flexprefill.h"
#include "attention/policies/full.h"
#include "attention/policies/minference.h"
#include "attention/policies/quest.h"
#include "attention/policies/sampled.h"
#include "attention/policies/streaming.h"
#include "attention/policies/xattention.h"
#include "attention/policy_names.h"
#include "attention/policy_pair.h"
#include "core/error.h"

namespace sluice {
namespace {

using MakePolicy = std::unique_ptr<Policy> (*)(const SparseOptions&);

// A policy of either phase.
template <typename P, Phase phase>
std::unique_ptr<Policy> make(const SparseOptions& options) {
  return std::make_unique<P>(phase, options);
}

// A policy of one phase.
template <typename P>
std::unique_ptr<Policy> make_one(const SparseOptions& options) {
  return std::make_unique<P>(options);
}

// One row per policy. A new policy needs a row here and nothing else in this file.
struct PolicyEntry {
  std::string_view name;
  MakePolicy make_prefill;  // null: the policy does not support the phase
  MakePolicy make_decode;
  std::span<const std::string_view> options;  // names of the kSparseOptionRows that it uses
  // Those of them of which it uses one: the policy refuses two.
  std::span<const std::string_view> alternatives = {};

  MakePolicy make(Phase phase) const {
    return phase == Phase::kPrefill ? make_prefill : make_decode;
  }
};

// The row of a policy of either phase.
template <typename P>
constexpr PolicyEntry either_phase(std::string_view name) {
  return {name, make<P, Phase::kPrefill>, make<P, Phase::kDecode>, P::kOptions};
}

constexpr std::array kPolicies = {
    PolicyEntry{"avgpool", make_one<AvgPoolPolicy>, nullptr, AvgPoolPolicy::kOptions,
                AvgPoolPolicy::kAlternatives},
    PolicyEntry{"flexprefill", make_one<FlexPrefillPolicy>, nullptr, FlexPrefillPolicy::kOptions},
    either_phase<FullPolicy>("full"),
    PolicyEntry{"minference", make_one<MInferencePolicy>, nullptr, MInferencePolicy::kOptions},
    PolicyEntry{"quest", nullptr, make_one<QuestPolicy>, QuestPolicy::kOptions},
    PolicyEntry{"sampled", make_one<SampledPolicy>, nullptr, SampledPolicy::kOptions},
    either_phase<StreamingPolicy>("streaming"),
    PolicyEntry{"xattention", make_one<XAttentionPolicy>, nullptr, XAttentionPolicy::kOptions},
};

// Whether the policy reads the option of this name.
bool uses(const PolicyEntry& entry, std::string_view option) {
  return std::find(entry.options.begin(), entry.options.end(), option) != entry.options.end();
}

// The row of a policy. `value` is the whole option, for the error.
const PolicyEntry& find(std::string_view name, std::string_view value) {
  for (const PolicyEntry& entry : kPolicies) {
    if (entry.name == name) return entry;
  }
  std::string names;
  for (const PolicyEntry& entry : kPolicies) {
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  fail(ErrorCode::kInvalidArgument,
       "sparse_policy is '{}', but the policies are: {}; two with a plus between them are for "
       "prefill and for decode, as in 'full+quest'",
       value, names);
}

// Throws the error for an option that neither policy reads (invariant 10), naming those that do.
[[noreturn]] void refuse_unused(std::string_view option, std::string_view policy) {
  std::string users;
  for (const PolicyEntry& entry : kPolicies) {
    if (uses(entry, option)) users += (users.empty() ? "" : ", ") + std::string(entry.name);
  }
  fail(ErrorCode::kInvalidArgument,
       "{} is given, but sparse_policy '{}' does not use it; leave it out, or choose a policy that "
       "does: {}",
       option, policy, users);
}

// Checks that every option that is set, except the policy's name, is used by `prefill` or `decode`.
void check_used(const SparseOptions& options, const PolicyEntry& prefill, const PolicyEntry& decode,
                std::string_view name) {
  SparseOptions unset;
  unset.policy = options.policy;
  for (const auto& row : kSparseOptionRows) {
    const bool given = row.get(options) != row.get(unset);
    if (given && !uses(prefill, row.facts.name) && !uses(decode, row.facts.name)) {
      refuse_unused(row.facts.name, name);
    }
  }
}

// The options for one policy of a pair: of several alternatives that are given, those that the
// other policy uses are meant for the other one.
SparseOptions options_for(const PolicyEntry& entry, const PolicyEntry& other,
                          SparseOptions options) {
  const auto is_given = [&](std::string_view name) {
    return std::ranges::any_of(kSparseOptionRows, [&](const auto& row) {
      return row.facts.name == name && row.get(options);
    });
  };
  if (std::ranges::count_if(entry.alternatives, is_given) < 2) return options;
  for (const auto& row : kSparseOptionRows) {
    const bool is_alternative =
        std::ranges::find(entry.alternatives, row.facts.name) != entry.alternatives.end();
    if (is_alternative && uses(other, row.facts.name)) row.set(options, std::nullopt);
  }
  return options;
}

// Checks a single name, which stands for both phases.
void require_both_phases(const PolicyEntry& policy) {
  if (policy.make_prefill && policy.make_decode) return;
  const bool lacks_prefill = !policy.make_prefill;
  fail(ErrorCode::kInvalidArgument,
       "sparse_policy is '{0}', but '{0}' has no {1}; write '{2}' to attend to everything there",
       policy.name, lacks_prefill ? "prefill" : "decode",
       lacks_prefill ? "full+" + std::string(policy.name) : std::string(policy.name) + "+full");
}

// Checks one half of "PREFILL+DECODE"; `remedy` is a value that works.
void require_phase(const PolicyEntry& policy, Phase phase, std::string_view value,
                   const std::string& remedy) {
  if (policy.make(phase)) return;
  fail(ErrorCode::kInvalidArgument,
       "sparse_policy is '{}', but '{}' does not support {}; write '{}'", value, policy.name,
       phase_name(phase), remedy);
}

}  // namespace

bool policies_use(std::string_view name, std::string_view option) {
  const size_t plus = name.find('+');
  const std::string_view decode = plus == std::string_view::npos ? name : name.substr(plus + 1);
  return uses(find(name.substr(0, plus), name), option) || uses(find(decode, name), option);
}

std::unique_ptr<PolicyPair> make_policies(std::string_view name, const SparseOptions& options) {
  validate(options);
  const size_t plus = name.find('+');
  const bool is_pair = plus != std::string_view::npos;
  const PolicyEntry& prefill = find(name.substr(0, plus), name);
  const PolicyEntry& decode = is_pair ? find(name.substr(plus + 1), name) : prefill;
  check_used(options, prefill, decode, name);
  if (is_pair) {
    const std::string after = decode.name == "full" ? "full" : "full+" + std::string(decode.name);
    require_phase(prefill, Phase::kPrefill, name, after);
    require_phase(decode, Phase::kDecode, name, std::string(prefill.name) + "+full");
  } else {
    require_both_phases(prefill);
  }
  auto pair = std::make_unique<PolicyPair>(
      std::string(name), prefill.make_prefill(options_for(prefill, decode, options)),
      decode.make_decode(options));
  if (options.audit) pair->add_audit();
  return pair;
}

}  // namespace sluice
