// PageRulePolicy: what policies share whose lists follow a PageRule (ops/page_selection.h): their
// options, the memory of the lists, and what the host knows of them.
//
// Base of quest and streaming. How many pages a list takes is a matter of counting; only which ones
// depends on scores. Thread rule: as Policy.
#pragma once

#include "attention/policy.h"
#include "attention/policy_options.h"
#include "core/arena.h"
#include "ops/page_selection.h"

namespace sluice {

class PageRulePolicy : public Policy {
 public:
  bool makes_lists(Phase phase) const override { return supports(phase); }
  bool capturable() const override { return true; }
  void check_layout(const KvBlockShape& block) const override;
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;
  std::optional<int64_t> num_selected_tokens(Phase phase, int64_t position) const override;
  int64_t max_selected_tokens(Phase phase, int64_t num_tokens) const override;
  bool selects_all(Phase phase, int64_t num_tokens) const override;
  bool may_select(const HistoryRange& range) const override;

 protected:
  struct Budget {
    int32_t topk_tokens = 0;
    int32_t sink_tokens = 0;
    int32_t recent_tokens = 0;
    int32_t threshold_tokens = 0;
  };
  // Whose rows share a list: those of one page, in prefill and decode; or nobody's, in decode only.
  enum class ListOf { kQueryPage, kRow };
  PageRulePolicy(const PolicyOptions& options, const Budget& defaults, ListOf list_of);

  // Of the memory that `initialize` took: lists of `num_seqs` sequences as large as the batch says,
  // to be written by select_pages. What is launched depends on their shape, so that short contexts
  // do not pay for the longest.
  PageList cut_lists(int64_t num_seqs, const AttentionBatch& batch) const;
  // Pages of the longest sequence of a batch.
  int64_t num_pages(const AttentionBatch& batch) const;

  const PolicyOptions& options() const { return options_; }
  const PageRule& rule() const { return rule_; }
  int32_t page_tokens() const { return page_tokens_; }

 private:
  struct ListMemory {
    TensorView page_ids;    // i32 [lists, pages of the longest list]; packed to each batch's width
    TensorView page_count;  // i32 [lists]
  };
  ListMemory cut_memory(Arena& arena, const KvLayout& layout, const PolicyLimits& limits) const;
  PageRule rule_for(int32_t page_tokens) const;
  int64_t num_query_pages(int64_t num_rows, int32_t page_tokens) const;
  int64_t anchor_of(int64_t position) const;
  int64_t num_list_heads(const KvLayout& layout) const;

  PolicyOptions options_;
  Budget budget_;
  ListOf list_of_;

  // From `initialize` on.
  int32_t page_tokens_ = 0;
  PageRule rule_;
  int64_t num_list_heads_ = 0;
  Buffer memory_;
  ListMemory lists_;
};

}  // namespace sluice
