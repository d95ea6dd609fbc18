#include "server/api/answer/answer_choice.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/mix.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerEvent::Kind;

void append_list(Json& list, Json& more) {
  auto& values = list.get_ref<Json::array_t&>();
  auto& next = more.get_ref<Json::array_t&>();
  values.insert(values.end(), std::make_move_iterator(next.begin()),
                std::make_move_iterator(next.end()));
}

}  // namespace

// Thoughts that are left out must be split off for that, also where they would be content.
AnswerFormat scanner_format(const AnswerOptions& options) {
  AnswerFormat format = options.format;
  if (options.route == AnswerRoute::kCompletions) return {};
  if (options.reasoning_field == ReasoningField::kNone && options.include_thoughts) {
    format.thinks = false;
    format.starts_in_thought = false;
  }
  return format;
}

void ChoicePart::append(ChoicePart next) {
  events.insert(events.end(), std::make_move_iterator(next.events.begin()),
                std::make_move_iterator(next.events.end()));
  if (logprobs.is_null()) {
    logprobs = std::move(next.logprobs);
  } else if (!next.logprobs.is_null()) {
    for (auto& [name, list] : logprobs.items()) append_list(list, next.logprobs[name]);
  }
  if (prompt_logprobs.is_null()) prompt_logprobs = std::move(next.prompt_logprobs);
  token_ids.insert(token_ids.end(), next.token_ids.begin(), next.token_ids.end());
}

AnswerChoice::AnswerChoice(const AnswerOptions& options, const Tokenizer& tokenizer, size_t index)
    : options_(&options),
      tokenizer_(&tokenizer),
      index_(index),
      scanner_(scanner_format(options), options.tools),
      thoughts_(options.route == AnswerRoute::kChat ? options.format : AnswerFormat{}, tokenizer,
                options.skip_special_tokens),
      legacy_(tokenizer, options.logprobs.value_or(0), options.skip_special_tokens,
              options.token_names) {}

ChoicePart AnswerChoice::take(const AnswerDelta& delta) {
  SLUICE_CHECK(!finished(), "choice {} goes on after its end", index_);
  const RequestOutput& output = delta.output;
  ChoicePart part;
  for (const int32_t id : output.token_ids) thoughts_.push(id);
  if (!output.token_ids.empty()) last_id_ = output.token_ids.back();
  part.events = scan(output);
  keep_shown(part.events);
  keep_first_call(part.events);
  add_logprobs(output, part);
  if (options_->return_token_ids) part.token_ids = output.token_ids;
  if (output.finished()) finish(output);
  has_begun_ = true;
  return part;
}

std::string AnswerChoice::echo() const {
  const AnswerPrompt& prompt = options_->prompt_of(index_);
  return prompt.text ? *prompt.text : tokenizer_->decode(prompt.ids, false);
}

std::vector<AnswerEvent> AnswerChoice::scan(const RequestOutput& output) {
  std::string text = options_->echo && !has_begun_ ? echo() : std::string();
  text += output.text;
  if (options_->include_stop_text) text += output.stop_reason;
  if (options_->route == AnswerRoute::kCompletions) {
    if (text.empty()) return {};
    return {{Kind::kContent, std::move(text)}};
  }
  std::vector<AnswerEvent> events = scanner_.push(text);
  if (!output.finished()) return events;
  for (AnswerEvent& event : scanner_.finish(end_of(output))) events.push_back(std::move(event));
  return events;
}

void AnswerChoice::keep_shown(std::vector<AnswerEvent>& events) const {
  if (options_->include_thoughts) return;
  std::erase_if(events, [](const AnswerEvent& event) { return event.kind == Kind::kThought; });
}

void AnswerChoice::keep_first_call(std::vector<AnswerEvent>& events) {
  if (!options_->single_call) return;
  if (is_full_) return events.clear();
  const auto end = std::ranges::find(events, Kind::kCallEnd, &AnswerEvent::kind);
  if (end == events.end()) return;
  events.erase(end + 1, events.end());
  is_full_ = true;
}

void AnswerChoice::add_logprobs(const RequestOutput& output, ChoicePart& part) {
  const bool has_prompt = !output.prompt_logprobs.empty();
  if (options_->prompt_logprobs && has_prompt) {
    part.prompt_logprobs =
        prompt_logprobs_json(*tokenizer_, output.prompt_logprobs, *options_->prompt_logprobs);
  }
  if (!options_->logprobs) return;
  if (options_->route == AnswerRoute::kCompletions) {
    part.logprobs = LegacyLogprobs::empty();
    if (options_->echo && has_prompt) {
      legacy_.append_prompt(options_->prompt_of(index_), output.prompt_logprobs, part.logprobs);
    }
    legacy_.append_answer(output.logprobs, part.logprobs);
    return;
  }
  Json& content = part.logprobs["content"] = Json::array();
  for (const LogprobEntry& entry : output.logprobs) {
    content.push_back(chat_logprob(*tokenizer_, entry, *options_->logprobs, options_->token_names));
  }
}

void AnswerChoice::finish(const RequestOutput& output) {
  const bool aborted = output.finish_reason == FinishReason::kCancelled;
  // What comes after the only call is left out, and so is how it ended.
  const bool calls = is_full_ || (scanner_.has_call() && end_of(output) == AnswerEnd::kModel);
  const char* const called = options_->named_call ? "stop" : "tool_calls";
  finish_reason_ = calls ? called : aborted ? "abort" : finish_reason_name(output.finish_reason);
  if (output.finish_reason != FinishReason::kStop) return;
  const std::vector<int32_t>& ids = options_->stop_token_ids;
  if (!output.stop_reason.empty()) {
    stop_reason_ = output.stop_reason;
  } else if (std::ranges::find(ids, last_id_) != ids.end()) {
    stop_reason_ = last_id_;
  }
}

AnswerEnd end_of(const RequestOutput& last) {
  const bool by_model = last.finish_reason == FinishReason::kStop && last.stop_reason.empty();
  return by_model ? AnswerEnd::kModel : AnswerEnd::kCut;
}

std::string call_digits(uint64_t seed, size_t choice, size_t call) {
  const uint64_t of_choice = split_mixed(seed ^ split_mixed(choice));
  const uint64_t first = split_mixed(of_choice + call);
  return fmt::format("{:016x}{:08x}", first, split_mixed(first ^ seed) >> 32);
}

std::string call_id(uint64_t seed, size_t choice, size_t call) {
  return "call_" + call_digits(seed, choice, call);
}

void add_thought(ReasoningField field, std::string_view text, Json& message) {
  const bool both = field == ReasoningField::kBoth;
  if (both || field == ReasoningField::kReasoningContent) message["reasoning_content"] = text;
  if (both || field == ReasoningField::kReasoning) message["reasoning"] = text;
}

Json call_json(const AnswerOptions& options, size_t choice, size_t call, const AnswerEvent& event) {
  Json json;
  json["index"] = call;
  json["id"] = call_id(options.call_seed, choice, call);
  json["type"] = "function";
  json["function"]["name"] = event.text;
  json["function"]["arguments"] = "";
  return json;
}

}  // namespace sluice::api
