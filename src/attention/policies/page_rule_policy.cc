// Derives the PageRule from the options, and the sizes of lists from the rule.
#include "attention/policies/page_rule_policy.h"

#include <algorithm>

namespace sluice {
namespace {

// Pages that hold this many tokens, rounded up.
int32_t pages_of(int32_t tokens, int32_t page_tokens) {
  return static_cast<int32_t>((int64_t{tokens} + page_tokens - 1) / page_tokens);
}

}  // namespace

PageRulePolicy::PageRulePolicy(std::string_view name, Phase phase, const SparseOptions& options,
                               const Budget& defaults, ListOf list_of)
    : Policy(name, phase),
      options_(options),
      budget_{.topk_tokens = options.topk_tokens.value_or(defaults.topk_tokens),
              .sink_tokens = options.sink_tokens.value_or(defaults.sink_tokens),
              .recent_tokens = options.recent_tokens.value_or(defaults.recent_tokens),
              .threshold_tokens = options.threshold_tokens.value_or(defaults.threshold_tokens)},
      list_of_(list_of) {
  validate(options);
}

SelectionRule PageRulePolicy::rule(const KvBlockShape& block) const {
  const int32_t tokens = choose_page_tokens(options_, block);
  return {.form = SelectionForm::kPageLists,
          .page_rule = {.sink_pages = pages_of(budget_.sink_tokens, tokens),
                        .recent_tokens = budget_.recent_tokens,
                        .top_pages = pages_of(budget_.topk_tokens, tokens),
                        .threshold_tokens = budget_.threshold_tokens},
          .page_tokens = tokens,
          .q_page_tokens = list_of_ == ListOf::kQueryPage ? tokens : 0};
}

// Lists per sequence: 1 if the KV heads share one, by option or because there are no scores.
int64_t PageRulePolicy::num_list_heads(const KvLayout& layout) const {
  const bool shared = options_.shared_list || list_of_ == ListOf::kQueryPage;
  return shared ? 1 : layout.block.num_kv_heads;
}

// Lists per head: query pages that `num_rows` consecutive rows can touch, or 1 for a decode row.
int64_t PageRulePolicy::num_query_pages(int64_t num_rows, int32_t page_tokens) const {
  if (list_of_ == ListOf::kRow || num_rows == 0) return std::min<int64_t>(num_rows, 1);
  return (num_rows + page_tokens - 2) / page_tokens + 1;
}

// Takes the lists of the largest pass from an arena.
PageRulePolicy::ListMemory PageRulePolicy::cut_memory(Arena& arena, const KvLayout& layout,
                                                      const PolicyLimits& limits) const {
  const SelectionRule rule = this->rule(layout.block);
  const int64_t num_lists =
      num_list_heads(layout) * limits.max_seqs * num_query_pages(limits.max_rows, rule.page_tokens);
  const int64_t max_pages = rule.max_listed_pages(limits.max_tokens);
  return {.page_ids = arena.tensor(DType::kI32, {num_lists, max_pages}),
          .page_count = arena.tensor(DType::kI32, {num_lists})};
}

PolicyMemory PageRulePolicy::memory(const KvLayout& layout, int32_t,
                                    const PolicyLimits& limits) const {
  Arena plan;
  cut_memory(plan, layout, limits);
  return {.summary_bytes = 0, .list_bytes = plan.used_bytes()};
}

void PageRulePolicy::initialize(Device& device, const KvLayout& layout, int32_t,
                                const PolicyLimits& limits) {
  rule_ = rule(layout.block);
  num_list_heads_ = num_list_heads(layout);
  memory_ =
      device.allocate(PageRulePolicy::memory(layout, 0, limits).list_bytes, MemoryKind::kDevice);
  Arena arena(memory_.data(), memory_.size_bytes());
  lists_ = cut_memory(arena, layout, limits);
}

int64_t PageRulePolicy::num_pages(const AttentionBatch& batch) const {
  return (batch.max_kv_tokens + page_tokens() - 1) / page_tokens();
}

PageList PageRulePolicy::cut_lists(int64_t num_seqs, const AttentionBatch& batch) const {
  const int64_t num_q_pages = num_query_pages(batch.max_rows, page_tokens());
  const int64_t num_lists = num_seqs * num_list_heads_ * num_q_pages;
  // No list is longer than the longest context of the batch.
  const int64_t width = std::min(lists_.page_ids.dim(1), num_pages(batch));
  SLUICE_CHECK(num_lists <= lists_.page_count.dim(0), "{} lists of {}", num_lists,
               lists_.page_count.dim(0));
  return {.page_ids = TensorView(lists_.page_ids.bytes(), DType::kI32,
                                 {num_seqs, num_list_heads_, num_q_pages, width}),
          .page_count = TensorView(lists_.page_count.bytes(), DType::kI32,
                                   {num_seqs, num_list_heads_, num_q_pages}),
          .page_tokens = rule_.page_tokens,
          .q_page_tokens = rule_.q_page_tokens};
}

}  // namespace sluice
