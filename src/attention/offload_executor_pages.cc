// The listed pages of a decode pass: which sequences have hot pages, gathers for the others, and
// the attention over hot pages.
#include <algorithm>

#include "attention/offload_executor.h"

namespace sluice {

// Plans as many slots for every sequence as the longest possible list needs: the lengths of the
// lists are known on the device only, and entries beyond the end of a list cost one comparison
// there. So passes of one shape enqueue the same work, also for sequences without history and for
// padding.
//
// Of the sequences, as many as have a hot place for each entry of their lists find their pages
// there, and need no slot. The number follows from the shape too.
void OffloadExecutor::plan_gathers(const AttentionPass& pass) {
  gathers_.clear();
  num_hot_seqs_ = 0;
  if (source_ != HistorySource::kGathers) return;
  const int64_t slot_tokens =
      int64_t{offload_.loader().slot_blocks()} * offload_.layout().block.block_tokens;
  const int64_t num_tokens = rule(pass.kind).max_selected_tokens(pass.batch.max_kv_tokens);
  const auto num_seqs = static_cast<int32_t>(pass.kv_end.dim(0));
  if (const HotPageCache* hot = offload_.hot_pages(); hot != nullptr && num_tokens > 0) {
    const int64_t entries = num_tokens / rule(pass.kind).page_tokens;
    num_hot_seqs_ = static_cast<int32_t>(std::min<int64_t>(num_seqs, hot->num_places() / entries));
  }
  for (int32_t seq = num_hot_seqs_; seq < num_seqs; ++seq) {
    for (int64_t begin = 0; begin < num_tokens; begin += slot_tokens) {
      gathers_.push_back({seq, begin, std::min(begin + slot_tokens, num_tokens),
                          kv_->slot_begin.rows(begin / slot_tokens, 1)});
    }
  }
}

// Fills every free slot with the next gathers of the layer; those of the next layer cannot be
// enqueued, since its lists do not exist yet.
void OffloadExecutor::gather_ahead(const AttentionPass& pass, LayerId layer,
                                   const PageList& pages) {
  while (next_gather_ < gathers_.size() && offload_.loader().can_load()) {
    const Gather& gather = gathers_[next_gather_++];
    const int32_t seq = gather.seq_index;
    TensorView places;
    if (kv_->block_places.present()) {
      places = kv_->block_places.rows(seq, 1).reshape({kv_->block_places.dim(1)});
    }
    loading_.push_back(
        {offload_.loader().gather(
             layer, {.block_ids = pass.block_ids.rows(seq, 1).reshape({pass.block_ids.dim(1)}),
                     .places = places,
                     .kv_end = pass.kv_begin.rows(seq, 1),
                     .pages = list_of(gather, pages)}),
         {}});
  }
}

// The part of a sequence's lists that one slot holds.
PageList OffloadExecutor::list_of(const Gather& gather, const PageList& pages) const {
  PageList list = pages;
  list.page_ids = pages.page_ids.rows(gather.seq_index, 1);
  list.page_count = pages.page_count.rows(gather.seq_index, 1);
  list.first_entry = static_cast<int32_t>(gather.begin_pos / pages.page_tokens);
  list.num_entries =
      static_cast<int32_t>((gather.end_pos + pages.page_tokens - 1) / pages.page_tokens) -
      list.first_entry;
  return list;
}

// Attends to the hot pages of the first sequences, in one call: each list is read in its places.
void OffloadExecutor::attend_hot(Stream& stream, const AttentionPass& pass, const LayerInput& input,
                                 const PageList& pages) {
  PageList lists = pages;
  lists.page_ids = pages.page_ids.rows(0, num_hot_seqs_);
  lists.page_count = pages.page_count.rows(0, num_hot_seqs_);
  lists.num_entries = static_cast<int32_t>(
      rule(pass.kind).max_selected_tokens(pass.batch.max_kv_tokens) / pages.page_tokens);
  const TensorView kv_end = pass.kv_begin.rows(0, num_hot_seqs_);
  AttentionBatch batch = pass.batch;
  batch.row_begin = pass.batch.row_begin.rows(0, num_hot_seqs_ + 1);
  batch.first_pos = pass.batch.first_pos.rows(0, num_hot_seqs_);
  const GatheredPages hot = offload_.hot_pages()->find(
      input.layer,
      {.pages = lists, .block_ids = pass.block_ids.rows(0, num_hot_seqs_), .kv_end = kv_end});
  attend_copies(stream, input, batch,
                {.kv = offload_.hot_pages()->pages(input.layer),
                 .kv_begin = kv_->history_begin.rows(0, num_hot_seqs_),
                 .kv_end = kv_end,
                 .block_table = {}},
                hot);
}

}  // namespace sluice
