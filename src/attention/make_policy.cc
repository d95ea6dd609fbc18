// The names of policies and the options that each of them uses.
#include <array>
#include <string>

#include "attention/policies/full.h"
#include "attention/policies/pair.h"
#include "attention/policies/quest.h"
#include "attention/policies/streaming.h"
#include "attention/policy.h"
#include "core/error.h"

namespace sluice {
namespace {

// Bits of the options that a policy uses.
enum OptionBit : unsigned {
  kTopk = 1,
  kPage = 2,
  kSink = 4,
  kRecent = 8,
  kThreshold = 16,
  kShared = 32,
};

template <typename P>
std::unique_ptr<Policy> make(const PolicyOptions& options) {
  return std::make_unique<P>(options);
}

struct PolicyEntry {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const PolicyOptions&);
  unsigned options;
};

constexpr std::array kPolicies = {
    PolicyEntry{"full", make<FullPolicy>, 0},
    PolicyEntry{"quest", make<QuestPolicy>, kTopk | kPage | kSink | kRecent | kThreshold | kShared},
    PolicyEntry{"streaming", make<StreamingPolicy>, kPage | kSink | kRecent | kThreshold},
};

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

void require_used(bool given, const char* option, unsigned bit, unsigned used,
                  std::string_view policy) {
  if (!given || (used & bit) != 0) return;
  std::string users;
  for (const PolicyEntry& entry : kPolicies) {
    if ((entry.options & bit) != 0) users += (users.empty() ? "" : ", ") + std::string(entry.name);
  }
  fail(ErrorCode::kInvalidArgument,
       "{} is given, but sparse_policy '{}' does not use it; leave it out, or choose a policy that "
       "does: {}",
       option, policy, users);
}

void check_used(const PolicyOptions& options, unsigned used, std::string_view policy) {
  require_used(options.topk_tokens.has_value(), "sparse_topk_tokens", kTopk, used, policy);
  require_used(options.page_tokens.has_value(), "sparse_page_tokens", kPage, used, policy);
  require_used(options.sink_tokens.has_value(), "sparse_sink_tokens", kSink, used, policy);
  require_used(options.recent_tokens.has_value(), "sparse_recent_tokens", kRecent, used, policy);
  require_used(options.threshold_tokens.has_value(), "sparse_threshold_tokens", kThreshold, used,
               policy);
  require_used(options.shared_list, "sparse_shared_list", kShared, used, policy);
}

// A name alone is for both phases.
void require_both_phases(const Policy& policy) {
  if (policy.supports_prefill() && policy.supports_decode()) return;
  const bool lacks_prefill = !policy.supports_prefill();
  fail(ErrorCode::kInvalidArgument,
       "sparse_policy is '{0}', but '{0}' has no {1}; write '{2}' to attend to everything there",
       policy.name(), lacks_prefill ? "prefill" : "decode",
       lacks_prefill ? "full+" + std::string(policy.name()) : std::string(policy.name()) + "+full");
}

}  // namespace

std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options) {
  validate(options);
  const size_t plus = name.find('+');
  if (plus == std::string_view::npos) {
    const PolicyEntry& entry = find(name, name);
    check_used(options, entry.options, name);
    std::unique_ptr<Policy> policy = entry.make(options);
    require_both_phases(*policy);
    return policy;
  }
  const PolicyEntry& prefill = find(name.substr(0, plus), name);
  const PolicyEntry& decode = find(name.substr(plus + 1), name);
  check_used(options, prefill.options | decode.options, name);
  return std::make_unique<PolicyPair>(prefill.make(options), decode.make(options));
}

}  // namespace sluice
