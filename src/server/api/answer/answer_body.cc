#include "server/api/answer/answer_body.h"

#include <utility>

#include "core/error.h"
#include "io/json_type.h"
#include "server/api/answer/answer_choice.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerEvent::Kind;

Json message_json(const AnswerOptions& options, size_t choice,
                  const std::vector<AnswerEvent>& events) {
  std::string thought, content;
  Json calls = Json::array();
  for (const AnswerEvent& event : events) {
    if (event.kind == Kind::kThought) thought += event.text;
    if (event.kind == Kind::kContent) content += event.text;
    if (event.kind == Kind::kCall) {
      Json call = call_json(options, choice, calls.size(), event);
      calls.push_back(std::move(call));
    }
    if (event.kind == Kind::kArguments) {
      calls.back()["function"]["arguments"].get_ref<std::string&>() += event.text;
    }
  }
  Json message;
  message["role"] = "assistant";
  message["content"] = nullptr;
  message["refusal"] = nullptr;  // clients of OpenAI's API check that it is there
  if (!content.empty() || calls.empty()) message["content"] = std::move(content);
  if (!thought.empty()) add_thought(options.reasoning_field, thought, message);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

std::string joined(const std::vector<AnswerEvent>& events) {
  std::string text;
  for (const AnswerEvent& event : events) text += event.text;
  return text;
}

Json choice_json(const AnswerOptions& options, const AnswerChoice& choice, ChoicePart& part) {
  const bool is_chat = options.route == AnswerRoute::kChat;
  Json json;
  json["index"] = choice.index();
  if (is_chat) {
    json["message"] = message_json(options, choice.index(), part.events);
  } else {
    json["text"] = joined(part.events);
  }
  json["logprobs"] = std::move(part.logprobs);
  json["finish_reason"] = choice.finish_reason();
  json["stop_reason"] = choice.stop_reason();
  if (options.return_token_ids) json["token_ids"] = std::move(part.token_ids);
  return json;
}

// What belongs to a prompt is a part of the document for a chat, which has one prompt, and of the
// choice for completions.
void add_prompt(const AnswerOptions& options, size_t choice, ChoicePart& part, Json& json) {
  if (options.prompt_logprobs) json["prompt_logprobs"] = std::move(part.prompt_logprobs);
  if (options.return_token_ids) json["prompt_token_ids"] = options.prompt_of(choice).ids;
}

}  // namespace

std::string json_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json answer_head(const AnswerOptions& options, std::string_view object) {
  const bool is_chat = options.route == AnswerRoute::kChat;
  Json json;
  json["id"] = (is_chat ? "chatcmpl-" : "cmpl-") + options.request_id;
  json["object"] = object;
  json["created"] = options.created;
  json["model"] = options.model;
  json["system_fingerprint"] = options.system_fingerprint;
  return json;
}

std::string openai_body(const AnswerOptions& options, const Tokenizer& tokenizer,
                        const std::vector<AnswerDelta>& choices,
                        const std::optional<CachedPlaces>& places) {
  const bool is_chat = options.route == AnswerRoute::kChat;
  Json json = answer_head(options, is_chat ? "chat.completion" : "text_completion");
  Json& list = json["choices"] = Json::array();
  UsageCounter usage(options);
  ChoicePart first;
  for (size_t i = 0; i < choices.size(); ++i) {
    AnswerChoice choice(options, tokenizer, i);
    ChoicePart part = choice.take(choices[i]);
    usage.add(choices[i], choice.num_thought_tokens());
    list.push_back(choice_json(options, choice, part));
    if (!is_chat) add_prompt(options, i, part, list.back());
    if (i == 0) first = std::move(part);
  }
  json["usage"] = usage.usage();
  json["timings"] = usage.timings(places);
  if (is_chat) add_prompt(options, 0, first, json);
  return json_line(json);
}

AnswerBody::AnswerBody(std::shared_ptr<const AnswerOptions> options,
                       std::shared_ptr<const AnswerWriter> writer)
    : options_(std::move(options)),
      writer_(std::move(writer)),
      deltas_(options_->num_choices()),
      has_begun_(options_->num_choices()) {}

void AnswerBody::add(size_t choice, RequestOutput output, http::TimePoint now) {
  if (output.finished()) ++num_finished_;
  AnswerDelta delta = make_delta(*options_, choice, std::move(output), now);
  if (has_begun_[choice]) return deltas_[choice].append(std::move(delta));
  deltas_[choice] = std::move(delta);
  has_begun_[choice] = true;
}

std::string AnswerBody::text(const std::optional<CachedPlaces>& places) const {
  SLUICE_CHECK(complete());
  return writer_->body(deltas_, places);
}

}  // namespace sluice::api
