// The object of a response. Clients check its members, so those that say nothing here are there,
// with the value that OpenAI's server gives for "not used".
#include "server/api/responses/response_answer.h"

#include <utility>

#include "server/api/answer/answer_logprobs.h"

namespace sluice::api {
namespace {

// What the request repeats, and members that have one value here but that clients require.
void add_request(const ResponseFacts& facts, Json& json) {
  json["parallel_tool_calls"] = facts.parallel_tool_calls;
  json["previous_response_id"] = nullptr;
  json["prompt_cache_key"] = facts.prompt_cache_key;
  json["reasoning"] = {{"effort", facts.effort}, {"summary", nullptr}};
  json["safety_identifier"] = facts.safety_identifier;
  json["service_tier"] = "default";
  json["store"] = false;
  json["temperature"] = json_logprob(facts.temperature);
  json["text"]["format"] = facts.format.is_null() ? Json({{"type", "text"}}) : facts.format;
  json["tool_choice"] = facts.tool_choice;
  json["tools"] = facts.tools;
  json["top_logprobs"] = facts.top_logprobs;
  json["top_p"] = json_logprob(facts.top_p);
  json["truncation"] = "disabled";
}

}  // namespace

ResponseAnswer::ResponseAnswer(const AnswerOptions& options, const ResponseFacts& facts,
                               const Tokenizer& tokenizer)
    : options_(&options),
      facts_(&facts),
      choice_(options, tokenizer, 0),
      usage_(options),
      items_(facts, options.call_seed) {
  if (!options.logprobs) return;
  items_.set_logprobs(&logprobs_.emplace(options, tokenizer));
}

// The last item stays open until `close`: an answer that a drain has cancelled becomes a failed
// one, in which no event closes the item.
void ResponseAnswer::take(const AnswerDelta& delta, const ResponseItems::Write& write) {
  ChoicePart part = choice_.take(delta);
  if (logprobs_ && !part.logprobs.is_null()) {
    std::optional<AnswerEnd> end;
    if (delta.output.finished()) end = end_of(delta.output);
    logprobs_->take(delta.output.token_ids, std::move(part.logprobs["content"]), end);
  }
  items_.take(part.events, write);
  usage_.add(delta, choice_.num_thought_tokens());
  const FinishReason reason = delta.output.finish_reason;
  is_cut_ =
      (reason == FinishReason::kLength || reason == FinishReason::kCancelled) && !choice_.is_full();
}

void ResponseAnswer::close(const ResponseItems::Write& write) { items_.close(!is_cut_, write); }

Json ResponseAnswer::head(const char* status) const {
  Json json = {{"id", "resp_" + options_->request_id},
               {"object", "response"},
               {"created_at", options_->created},
               {"status", status},
               {"background", false},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"instructions", facts_->instructions},
               {"max_output_tokens", facts_->max_output_tokens},
               {"max_tool_calls", nullptr},
               {"model", options_->model},
               {"output", Json::array()}};
  add_request(*facts_, json);
  json["usage"] = nullptr;
  json["user"] = facts_->user;
  json["metadata"] = facts_->metadata;
  return json;
}

// The prefix cache costs its writer nothing, so no tokens count as written.
Json ResponseAnswer::usage() const {
  const TokenCounts counts = usage_.counts();
  Json json;
  json["input_tokens"] = counts.prompt;
  json["input_tokens_details"] = {{"cached_tokens", counts.cached}, {"cache_write_tokens", 0}};
  json["output_tokens"] = counts.generated;
  json["output_tokens_details"]["reasoning_tokens"] = counts.thought;
  json["total_tokens"] = counts.prompt + counts.generated;
  add_clamp(*options_, json);
  return json;
}

Json ResponseAnswer::running() const { return head("in_progress"); }

// The API has no reason for a limit of time. Clients handle this one as they handle every cut.
Json ResponseAnswer::ended() const {
  Json json = head(is_cut_ ? "incomplete" : "completed");
  if (is_cut_) json["incomplete_details"]["reason"] = "max_output_tokens";
  json["output"] = items_.list();
  json["usage"] = usage();
  return json;
}

// The only code that fits, and one for which clients try again.
Json ResponseAnswer::failed(const http::Fault& fault) const {
  Json json = head("failed");
  json["error"] = {{"code", "server_error"}, {"message", fault.message}};
  json["output"] = items_.list();
  json["usage"] = usage();
  return json;
}

}  // namespace sluice::api
