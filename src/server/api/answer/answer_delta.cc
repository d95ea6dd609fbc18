#include "server/api/answer/answer_delta.h"

#include <utility>

#include "core/error.h"

namespace sluice::api {
namespace {

// The entries of one output have the same size.
size_t entries_bytes(const std::vector<std::vector<TokenLogprob>>& entries) {
  if (entries.empty()) return 0;
  const auto& entry = entries.back();
  return entries.size() * (sizeof(entry) + entry.size() * sizeof(TokenLogprob));
}

}  // namespace

void AnswerDelta::append(AnswerDelta next) {
  SLUICE_CHECK(choice == next.choice);
  output.append(std::move(next.output));
  last_time = next.last_time;
}

size_t AnswerDelta::size_bytes() const {
  return sizeof(*this) + output.text.size() + output.token_ids.size() * sizeof(int32_t) +
         entries_bytes(output.logprobs) + entries_bytes(output.prompt_logprobs);
}

AnswerDelta make_delta(const AnswerOptions& options, size_t choice, RequestOutput output,
                       http::TimePoint now) {
  output.prompt_token_ids = {};
  output.captured_mass = {};
  if (options.prompt_only) {
    output.text.clear();
    output.token_ids.clear();
    output.logprobs.clear();
    output.stop_reason.clear();
    if (output.finish_reason == FinishReason::kStop) output.finish_reason = FinishReason::kLength;
  }
  return {.choice = choice, .output = std::move(output), .first_time = now, .last_time = now};
}

}  // namespace sluice::api
