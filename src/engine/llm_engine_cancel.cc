// The ends of requests that the caller no longer wants.
#include <algorithm>
#include <iterator>

#include "engine/llm_engine.h"

namespace sluice {

void LlmEngine::cancel_request(SequenceId id) {
  std::unique_ptr<Sequence> sequence = scheduler_->remove(id);
  if (!sequence) return;
  if (speculator_) speculator_->forget(id);
  sequence->text += sequence->detokenizer.finish();
  sequence->output.finish_reason = FinishReason::kCancelled;
  sequence->show_text(sequence->text.size());
  cancelled_.push_back(sequence->take_output());
}

void LlmEngine::drop_request(SequenceId id) {
  cancel_request(id);
  std::erase_if(cancelled_,
                [id](const RequestOutput& output) { return output.request_id == id.value; });
}

// Ends the requests whose flag is set, and moves the outputs of all cancelled ones to `outputs`.
void LlmEngine::take_cancelled(std::vector<RequestOutput>& outputs) {
  for (const SequenceId id : scheduler_->cancelled_ids()) cancel_request(id);
  std::ranges::move(cancelled_, std::back_inserter(outputs));
  cancelled_.clear();
}

}  // namespace sluice
