// Names of finish reasons, and joining the deltas of a request.
#include "sluice/request_output.h"

#include <iterator>
#include <utility>

namespace sluice {

std::string finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "";
}

// Lists and text grow; counts and reasons are those of the later output.
void RequestOutput::append(RequestOutput next) {
  request_id = next.request_id;
  if (next.finished()) {
    prompt_token_ids = std::move(next.prompt_token_ids);
    captured_mass = std::move(next.captured_mass);
  }
  num_cached_tokens = next.num_cached_tokens;
  num_stored_tokens = next.num_stored_tokens;
  num_prompt_tokens_done = next.num_prompt_tokens_done;
  stats = next.stats;
  token_ids.insert(token_ids.end(), next.token_ids.begin(), next.token_ids.end());
  text += next.text;
  logprobs.insert(logprobs.end(), std::make_move_iterator(next.logprobs.begin()),
                  std::make_move_iterator(next.logprobs.end()));
  prompt_logprobs.insert(prompt_logprobs.end(),
                         std::make_move_iterator(next.prompt_logprobs.begin()),
                         std::make_move_iterator(next.prompt_logprobs.end()));
  speculation.add(next.speculation);
  finish_reason = next.finish_reason;
  stop_reason = std::move(next.stop_reason);
  error = std::move(next.error);
}

}  // namespace sluice
