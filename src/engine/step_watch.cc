// Progress by prompt, and when a cancelled request ends the pass that it shares.
#include "engine/step_watch.h"

#include <algorithm>

namespace sluice {

StepWatch::StepWatch(const Batch& batch, const PassWatch* caller)
    : batch_(batch),
      caller_(caller),
      watch_{.on_progress = [this](int64_t num_rows_done) { report(num_rows_done); },
             .should_cancel = [this] { return should_cancel(); }} {}

bool StepWatch::is_needed(const Batch& batch, const PassWatch* caller, int64_t min_rows) {
  if (!batch.kind.is_prefill) return false;
  int64_t longest = 0;  // tokens that the last row of a span attends to
  bool has_flag = false;
  for (const ScheduledSequence& s : batch.sequences) {
    longest = std::max(longest, s.sequence->kv.num_tokens() + s.num_rows);
    has_flag = has_flag || s.sequence->cancel != nullptr;
  }
  const int64_t num_rows = batch.num_rows();
  const bool is_long = num_rows >= min_rows || num_rows * longest >= min_rows * min_rows;
  return is_long && (caller != nullptr || has_flag);
}

void StepWatch::report(int64_t num_rows_done) const {
  if (caller_ == nullptr) return;
  if (caller_->on_progress) caller_->on_progress(num_rows_done);
  if (!caller_->on_prompt) return;
  const double share = static_cast<double>(num_rows_done) / static_cast<double>(batch_.num_rows());
  for (const ScheduledSequence& s : batch_.sequences) {
    const auto num_rows = static_cast<int64_t>(share * static_cast<double>(s.num_rows));
    s.sequence->set_prompt_done(s.sequence->kv.num_tokens() + num_rows);
    caller_->on_prompt(s.sequence->prompt_progress());
  }
}

void StepWatch::begin() const {
  if (caller_ == nullptr || !caller_->on_begin || !batch_.kind.is_prefill) return;
  for (const ScheduledSequence& s : batch_.sequences) {
    s.sequence->set_prompt_done(s.sequence->kv.num_tokens());
    caller_->on_begin(s.sequence->prompt_progress());
  }
}

// Requests with half of the rows must be cancelled: the others compute theirs again, and a client
// that starts and cancels requests could otherwise keep them from ever ending a pass. With fewer
// the pass goes on, and the cancelled ones end with it.
bool StepWatch::should_cancel() const {
  if (caller_ != nullptr && caller_->should_cancel && caller_->should_cancel()) return true;
  int64_t num_cancelled = 0;
  for (const ScheduledSequence& s : batch_.sequences) {
    num_cancelled += s.sequence->is_cancelled() ? s.num_rows : 0;
  }
  return num_cancelled > 0 && 2 * num_cancelled >= batch_.num_rows();
}

}  // namespace sluice
