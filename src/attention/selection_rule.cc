// The counts of select_pages (ops/pages/page_selection.h), repeated on the host without scores.
#include "attention/selection_rule.h"

#include <algorithm>

namespace sluice {

// The position by which the rule decides for a row: that of its query page's first row if rows
// share lists, else its own.
int64_t SelectionRule::anchor_of(int64_t position) const {
  return q_page_tokens > 0 ? position / q_page_tokens * q_page_tokens : position;
}

int64_t SelectionRule::first_recent_page(int64_t position) const {
  return std::max<int64_t>(0, anchor_of(position) - page_rule.recent_tokens) / page_tokens;
}

int64_t SelectionRule::num_listed_pages(int64_t position) const {
  const int64_t num_pages = position / page_tokens + 1;
  if (anchor_of(position) < page_rule.threshold_tokens) return num_pages;
  // The pages that are neither sinks nor recent, of which the best top_pages are listed.
  const int64_t num_others =
      std::max<int64_t>(0, first_recent_page(position) - page_rule.sink_pages);
  return num_pages - num_others + std::min<int64_t>(page_rule.top_pages, num_others);
}

int64_t SelectionRule::max_listed_pages(int64_t num_tokens) const {
  const auto pages_of = [&](int64_t tokens) { return (tokens + page_tokens - 1) / page_tokens; };
  // recent_tokens + 1 tokens that begin inside a page touch one page more than they fill.
  const int64_t by_rule =
      page_rule.sink_pages + pages_of(page_rule.recent_tokens) + 1 + int64_t{page_rule.top_pages};
  return std::min(std::max(by_rule, pages_of(page_rule.threshold_tokens)), pages_of(num_tokens));
}

// All pages of a row's list are full except the last, the row's own, of which the row attends to
// the tokens up to its position.
std::optional<int64_t> SelectionRule::num_selected_tokens(int64_t position) const {
  if (form == SelectionForm::kEverything) return position + 1;
  if (form == SelectionForm::kTileMasks) {
    return position < full_rows_end ? std::optional(position + 1) : std::nullopt;
  }
  return (num_listed_pages(position) - 1) * page_tokens + position % page_tokens + 1;
}

int64_t SelectionRule::max_selected_tokens(int64_t num_tokens) const {
  return makes_page_lists() ? max_listed_pages(num_tokens) * page_tokens : num_tokens;
}

// Checks the last row only: a row before it has fewer other pages and is not further from the
// threshold, so it attends to everything as well.
bool SelectionRule::selects_all(int64_t num_tokens) const {
  if (form == SelectionForm::kEverything || num_tokens == 0) return true;
  return !lists_everything && num_selected_tokens(num_tokens - 1) == num_tokens;
}

bool SelectionRule::may_select(int64_t first_row_pos, int64_t begin_pos, int64_t end_pos) const {
  if (!makes_page_lists()) return true;
  return page_rule.top_pages > 0 || anchor_of(first_row_pos) < page_rule.threshold_tokens ||
         begin_pos < int64_t{page_rule.sink_pages} * page_tokens ||
         end_pos > first_recent_page(first_row_pos) * page_tokens;
}

}  // namespace sluice
