// PageRulePolicy: base of the policies whose lists follow a PageRule (ops/pages/page_selection.h).
//
// A row's list has the pages of the first sink tokens, the pages of the newest recent tokens, and
// of the pages between them the top_pages with the highest scores; before the threshold it has all
// pages. This class has the options and the memory of the lists. Used by quest and streaming.
// Thread rule: as Policy.
#pragma once

#include "attention/policy.h"
#include "attention/policy_options.h"
#include "core/arena.h"
#include "ops/pages/page_selection.h"

namespace sluice {

class PageRulePolicy : public Policy {
 public:
  SelectionRule rule(const KvBlockShape& block) const override;
  bool capturable() const override { return true; }
  PolicyMemory memory(const KvLayout& layout, int32_t num_blocks,
                      const PolicyLimits& limits) const override;
  void initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                  const PolicyLimits& limits) override;

 protected:
  // In tokens; the rule rounds up to pages. Values of the options replace these defaults.
  struct Budget {
    int32_t topk_tokens = 0;
    int32_t sink_tokens = 0;
    int32_t recent_tokens = 0;
    int32_t threshold_tokens = 0;
  };
  // Which rows share a list: those of one query page; or none, which is supported in decode only.
  enum class ListOf { kQueryPage, kRow };
  PageRulePolicy(std::string_view name, Phase phase, const SparseOptions& options,
                 const Budget& defaults, ListOf list_of);

  // Views of the lists of `num_seqs` sequences in the memory of `initialize`, as wide as the
  // batch's longest context needs; select_pages writes them. Kernels are launched by this shape, so
  // that short contexts cost less than the longest possible one.
  PageList cut_lists(int64_t num_seqs, const AttentionBatch& batch) const;
  // Pages of the longest sequence of a batch.
  int64_t num_pages(const AttentionBatch& batch) const;

  const SparseOptions& options() const { return options_; }
  const PageRule& page_rule() const { return rule_.page_rule; }
  int32_t page_tokens() const { return rule_.page_tokens; }

 private:
  struct ListMemory {
    TensorView page_ids;    // i32 [lists, pages of the longest list]; packed to each batch's width
    TensorView page_count;  // i32 [lists]
  };
  ListMemory cut_memory(Arena& arena, const KvLayout& layout, const PolicyLimits& limits) const;
  int64_t num_query_pages(int64_t num_rows, int32_t page_tokens) const;
  int64_t num_list_heads(const KvLayout& layout) const;

  SparseOptions options_;
  Budget budget_;
  ListOf list_of_;

  // From `initialize` on.
  SelectionRule rule_;
  int64_t num_list_heads_ = 0;
  Buffer memory_;  // of lists_
  ListMemory lists_;
};

}  // namespace sluice
