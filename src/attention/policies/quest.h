// quest: a decode policy that selects the pages whose keys may have the highest scores.
//
// Each page of keys is summarised by its minimum and maximum per channel. For a query q this gives
// an upper bound of q.k over the page: sum over channels c of max(q[c] * min[c], q[c] * max[c]).
// The score of a page for a KV head is the maximum over its query heads. The pages with the highest
// scores are attended to, together with the first and the newest pages. With dual chunk attention
// the query is that of the page's zone (QueryZones).
// Summaries are computed when keys are written and are indexed by block id, so a block of the
// prefix cache keeps its summary.
// Source: Tang et al. 2024, arXiv 2406.10774; docs/policies.md lists the differences.
// Thread rule: as Policy.
#pragma once

#include "attention/policies/page_rule_policy.h"

namespace sluice {

class QuestPolicy final : public PageRulePolicy {
 public:
  static constexpr std::string_view kOptions[] = {"sparse_topk_tokens",      "sparse_page_tokens",
                                                  "sparse_sink_tokens",      "sparse_recent_tokens",
                                                  "sparse_threshold_tokens", "sparse_shared_list"};

  explicit QuestPolicy(const SparseOptions& options);

  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;
  bool knows_zones() const override { return true; }
  // Summarises the pages: those of the prompt, and those that decode fills.
  void on_keys_written(Stream& stream, const WrittenKv& written) override;
  Selection select(Stream& stream, const SelectInput& input) override;
  PageReadCounts page_reads() const override {
    if (!reads_.present()) return {};
    return {.counts = reads_, .page_tokens = page_tokens()};
  }

 private:
  // The summaries of `num_layers` layers.
  KeyBounds bounds(LayerId first, int32_t num_layers = 1) const;
  TensorView cut_bounds(Arena& arena, const KvLayout& layout, int32_t num_blocks) const;
  TensorView cut_reads(Arena& arena, const KvLayout& layout, int32_t num_blocks,
                       const PolicyLimits& limits) const;
  TensorView cut_scores(Arena& arena, const KvLayout& layout, const PolicyLimits& limits) const;

  int64_t num_blocks_ = 0;
  Buffer bounds_memory_;  // of bounds_ and reads_
  Buffer scores_memory_;
  TensorView bounds_;  // bf16 [layers * blocks, pages per block, KV heads, 2, head_dim]
  TensorView reads_;   // i32 [blocks, pages per block]; absent: nothing is counted
  TensorView scores_;  // f32 [sequences of a decode pass, KV heads, pages of a sequence]; packed
};

}  // namespace sluice
