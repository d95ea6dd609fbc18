// Which options each kind of work needs, and why they are refused without it.
#include "cli/options/engine_uses.h"

#include "cli/options/check_parts.h"
#include "core/error.h"
#include "core/option_check.h"

namespace sluice::cli {
namespace {

void refuse_policy_for_decode(const std::string& policy) {
  if (policy.find('+') == policy.npos || policy.ends_with("+full")) return;
  fail(ErrorCode::kInvalidArgument,
       "--sparse-policy: '{}' names a policy for decode, but all is computed in prefill here; name "
       "one policy, or PREFILL+full",
       policy);
}

void refuse(Unused what, const EngineOptions& engine, const Given& given) {
  switch (what) {
    case Unused::kDecode:
      return refuse_policy_for_decode(engine.sparse.policy);
    case Unused::kDrafts:
      return refuse_given(
          given,
          {"--speculative-method", "--speculative-config", "--num-speculative-tokens",
           "--prompt-lookup-min", "--prompt-lookup-max"},
          "this command generates no text that could be drafted; leave it out");
    case Unused::kStalls:
      return refuse_given(given, {"--max-stall-ms"},
                          "no sequence decodes here while a prompt is read; leave it out");
    case Unused::kSequences:
      return refuse_given(given, {"--max-num-seqs"},
                          "this command sets the number of sequences itself; leave it out");
    case Unused::kAudit:
      return refuse_given(given, {"--sparse-audit"},
                          "this command does not show what the audit measures; `sluice run -v`, "
                          "`run --json`, `sluice-eval needle` and `sluice-lab sparse` do");
    case Unused::kNoPrefixes:
      return refuse_given(given, {"--no-prefix-caching"},
                          "runs of a prompt share its KV here; leave it out");
    case Unused::kSeed:
      if (engine.load_format == LoadFormat::kDummy) return;
      return refuse_given(given, {"--seed"},
                          "only random weights would use it here; leave it out, or add "
                          "--load-format dummy");
  }
}

}  // namespace

void refuse_unused(const EngineOptions& engine, const Given& given,
                   std::initializer_list<Unused> unused) {
  for (const Unused what : unused) refuse(what, engine, given);
}

void refuse_engine_options(const Given& given, const std::string& why) {
  const auto refuse_all = [&](const auto& rows) {
    for (const auto& row : rows) refuse_given(given, {long_option(row.facts).c_str()}, why);
  };
  refuse_all(kEngineOptionRows);
  refuse_all(kKvOptionRows);
  refuse_all(kKvOffloadRows);
  refuse_all(kSparseOptionRows);
  refuse_all(kSpeculativeRows);
}

void refuse_options_of_parts_off(const EngineOptions& engine, const Given& given) {
  if (!engine.kv_store.dir) {
    refuse_given(given, {"--kv-store-bytes", "--kv-store-mode", "--kv-store-min-tokens"},
                 "there is no KV store; add --kv-store DIR, or leave it out");
  }
  if (!engine.kv_events.endpoint) {
    refuse_given(
        given,
        {"--kv-events-replay", "--kv-events-topic", "--kv-events-buffer-steps", "--kv-events-hwm"},
        "no events are sent; add --kv-events ENDPOINT, or leave it out");
  }
  if (!engine.kv_events.replay_endpoint) {
    refuse_given(given, {"--kv-events-buffer-steps"},
                 "nobody can ask for old events; add --kv-events-replay ENDPOINT, or leave it out");
  }
  if (engine.speculative.config) return;  // the engine refuses the other four beside it
  const SpeculativeMethod method = engine.speculative.method;
  if (method == SpeculativeMethod::kNone) {
    refuse_given(given, {"--num-speculative-tokens", "--prompt-lookup-min", "--prompt-lookup-max"},
                 "nothing is drafted; add --speculative-method, or leave it out");
  }
  if (method == SpeculativeMethod::kSparse) {
    refuse_given(given, {"--prompt-lookup-min", "--prompt-lookup-max"},
                 "--speculative-method sparse looks for no n-grams; take ngram or ngram+sparse");
  }
}

}  // namespace sluice::cli
