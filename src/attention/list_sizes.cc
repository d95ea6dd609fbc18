// The counting half of select_pages.
#include "attention/list_sizes.h"

#include <algorithm>

namespace sluice {

int64_t first_recent_page(const PageRule& rule, int32_t page_tokens, int64_t anchor_pos) {
  return std::max<int64_t>(0, anchor_pos - rule.recent_tokens) / page_tokens;
}

int64_t num_listed_pages(const PageRule& rule, int32_t page_tokens, int64_t anchor_pos) {
  const int64_t num_pages = anchor_pos / page_tokens + 1;
  if (anchor_pos < rule.threshold_tokens) return num_pages;
  const int64_t first_recent = first_recent_page(rule, page_tokens, anchor_pos);
  const int64_t num_others = std::max<int64_t>(0, first_recent - rule.sink_pages);
  return num_pages - num_others + std::min<int64_t>(rule.top_pages, num_others);
}

int64_t max_listed_pages(const PageRule& rule, int32_t page_tokens, int64_t max_tokens) {
  const auto pages_of = [=](int64_t tokens) { return (tokens + page_tokens - 1) / page_tokens; };
  // recent_tokens + 1 tokens touch one page more than they fill when they begin inside one.
  const int64_t by_rule =
      rule.sink_pages + pages_of(rule.recent_tokens) + 1 + int64_t{rule.top_pages};
  return std::min(std::max(by_rule, pages_of(rule.threshold_tokens)), pages_of(max_tokens));
}

bool may_list(const PageRule& rule, int32_t page_tokens, int64_t anchor_pos, int64_t begin_pos,
              int64_t end_pos) {
  return rule.top_pages > 0 || anchor_pos < rule.threshold_tokens ||
         begin_pos < int64_t{rule.sink_pages} * page_tokens ||
         end_pos > first_recent_page(rule, page_tokens, anchor_pos) * page_tokens;
}

}  // namespace sluice
