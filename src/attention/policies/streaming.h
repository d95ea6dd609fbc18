// streaming: selects the first tokens and a window of the newest ones, in prefill and decode.
//
// It uses neither summaries nor scores. All heads share a list, and so do the rows of one page, in
// both phases: a row reads the same pages in prefill and in decode, so a sequence that is preempted
// and computed again continues with the same bits (invariant 7).
// Source: Xiao et al. 2023, arXiv 2309.17453 (StreamingLLM), without moving positions together.
// Thread rule: as Policy.
#pragma once

#include "attention/policies/page_rule_policy.h"

namespace sluice {

class StreamingPolicy final : public PageRulePolicy {
 public:
  static constexpr std::string_view kOptions[] = {"sparse_page_tokens", "sparse_sink_tokens",
                                                  "sparse_recent_tokens",
                                                  "sparse_threshold_tokens"};

  StreamingPolicy(Phase phase, const SparseOptions& options);

  // Prefill attention over lists has no zones on a GPU.
  bool knows_zones() const override { return phase() == Phase::kDecode; }
  Selection select(Stream& stream, const SelectInput& input) override;
};

}  // namespace sluice
