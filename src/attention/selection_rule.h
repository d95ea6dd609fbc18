// SelectionRule: the properties of a policy's selections that the host can compute without reading
// the lists.
//
// select_pages (ops/pages/page_selection.h) makes lists on the device. Scores affect their contents
// only; the host can compute their sizes. Made by Policy::rule; read by the executor (which history
// to load, how many slots gathers may need), by the observer and by policies for the memory of
// their lists. Thread rule: a value; pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/pages/page_selection.h"

namespace sluice {

enum class SelectionForm {
  kEverything,  // no lists: every row attends to all tokens before it
  kPageLists,   // their lengths follow a PageRule
  kTileMasks,   // the number of set tiles is known on the device only, except before full_rows_end
};

struct SelectionRule {
  SelectionForm form = SelectionForm::kEverything;

  // kPageLists only.
  PageRule page_rule;
  int32_t page_tokens = 0;
  int32_t q_page_tokens = 0;  // rows of a query page of this size share a list; 0: one list per row
  bool lists_everything = false;  // lists are made even where they name all pages

  // kTileMasks only.
  int64_t full_rows_end = 0;  // rows before this position attend to everything
  int32_t num_masks = 0;      // of a query tile: one for each KV head, or 1

  bool selects() const { return form != SelectionForm::kEverything; }
  bool makes_page_lists() const { return form == SelectionForm::kPageLists; }

  // Tokens of [0, position] that the row there attends to; empty if only the device knows.
  std::optional<int64_t> num_selected_tokens(int64_t position) const;

  // Tokens of the pages of the longest list that a row can get in a sequence of up to `num_tokens`.
  int64_t max_selected_tokens(int64_t num_tokens) const;

  // True only if every row of sequences of up to `num_tokens` tokens attends to all tokens before
  // it. Such a pass needs no lists, except for gathers.
  bool selects_all(int64_t num_tokens) const;

  // False only if no row at `first_row_pos` or later can attend to a token of [begin_pos, end_pos),
  // so that these blocks need not be loaded.
  // REQUIRES: begin_pos and end_pos are multiples of page_tokens; end_pos <= first_row_pos.
  bool may_select(int64_t first_row_pos, int64_t begin_pos, int64_t end_pos) const;

  // kPageLists: the first page that holds a token of [anchor - recent_tokens, anchor], where the
  // anchor is the row's position, or the first position of its query page.
  int64_t first_recent_page(int64_t position) const;
  // kPageLists: pages of the list of the row there, its own page included.
  int64_t num_listed_pages(int64_t position) const;
  // kPageLists: pages of the longest list that a sequence of up to `num_tokens` tokens can get.
  int64_t max_listed_pages(int64_t num_tokens) const;

 private:
  int64_t anchor_of(int64_t position) const;
};

}  // namespace sluice
