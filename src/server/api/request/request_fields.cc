// One row a field; field_rows.h has the rows that further APIs share.
#include "server/api/request/request_fields.h"

#include <array>
#include <limits>

#include "server/api/request/body_reader.h"
#include "server/api/request/field_rows.h"
#include "server/api/request/item_schemas.h"
#include "server/api/request/structure_fields.h"
#include "server/api/request/tool_choice.h"
#include "sluice/pin_info.h"

namespace sluice::api {
namespace {

constexpr std::array kStreamOptions = {
    OptionFacts{.name = "include_usage",
                .kind = OptionKind::kFlag,
                .when_unset = "false",
                .help = "a last chunk with the numbers of tokens"},
    OptionFacts{.name = "continuous_usage_stats",
                .kind = OptionKind::kFlag,
                .when_unset = "false",
                .help = "with include_usage: the numbers of tokens so far in every chunk"},
};

// Members that check_field let through are true, false or null.
template <typename Body>
void set_stream_options(Body& body, Json&& value) {
  const auto is_set = [&](const char* name) {
    const auto member = value.find(name);
    return member != value.end() && *member == true;
  };
  body.has_stream_options = !value.empty();
  body.include_usage = is_set("include_usage");
  body.continuous_usage_stats = body.include_usage && is_set("continuous_usage_stats");
}

// The first item says which of the four forms it is; check_prompt saw to the others.
void set_prompts(CompletionBody& body, Json&& value) {
  const auto as_ids = [](const Json& ids) { return ids.get<std::vector<int32_t>>(); };
  if (value.is_string()) {
    body.prompts.emplace_back(std::move(value.get_ref<std::string&>()));
  } else if (value[0].is_number()) {
    body.prompts.emplace_back(as_ids(value));
  } else {
    for (Json& prompt : value) {
      if (prompt.is_string()) {
        body.prompts.emplace_back(std::move(prompt.get_ref<std::string&>()));
      } else {
        body.prompts.emplace_back(as_ids(prompt));
      }
    }
  }
}

// How many answers a prompt gets, and what they have from it.
template <typename Body>
void add_answers(Fields<Body>& fields) {
  fields.push_back(option_field<&CommonRequest::n, Body>({.name = "n",
                                                          .min = 1,
                                                          .max = kMaxChoices,
                                                          .when_unset = "1",
                                                          .help = "answers for each prompt"}));
  fields.push_back(option_field<&Body::best_of, Body>(
      {.name = "best_of", .min = 1, .max = kMaxChoices, .when_unset = "n", .help = "must be n"}));
  fields.push_back(option_field<&CommonRequest::prompt_logprobs, Body>(kPromptLogprobsRow.facts));
  fields.push_back(row_field<Body>(kCacheSaltRow));
}

// What is sent beside the text, and when.
template <typename Body>
void add_streams(Fields<Body>& fields) {
  fields.push_back(option_field<&CommonRequest::stream, Body>(
      flag_facts("stream", "false", "send the answer as it comes")));
  fields.push_back({object_facts("stream_options", kStreamOptions, "{}",
                                 "what a stream has beside the answer; needs stream"),
                    set_stream_options<Body>});
  fields.push_back(option_field<&CommonRequest::return_progress, Body>(
      flag_facts("return_progress", "false", "chunks with the progress of the prompt")));
  fields.push_back(option_field<&CommonRequest::return_token_ids, Body>(
      flag_facts("return_token_ids", "false", "ids of prompt and answer")));
  fields.push_back(option_field<&CommonRequest::return_tokens_as_token_ids, Body>(
      flag_facts("return_tokens_as_token_ids", "false",
                 "in log-probabilities token_id:N instead of the texts of tokens")));
  fields.push_back(option_field<&CommonRequest::timings_per_token, Body>(
      flag_facts("timings_per_token", "false", "timings so far in chunks with text")));
}

// All fields that mean the same in completions and chats. Those that only share a name, such as
// logprobs, are in the lists of the routes.
template <typename Body>
Fields<Body> common_fields() {
  Fields<Body> fields = {model_field<Body>()};
  add_sampling(fields);
  add_ends(fields);
  add_answers(fields);
  add_streams(fields);
  add_structures<Body>(fields);
  add_refusals(fields, shared_refusals());
  return fields;
}

// What a chat template is given, and what the ids of its text depend on.
template <typename Body>
void add_conversation(Fields<Body>& fields, bool required) {
  fields.push_back(
      json_field<&Conversation::messages, Body>({.name = "messages",
                                                 .help = "the conversation",
                                                 .field = {.form = FieldForm::kObjects,
                                                           .required = required,
                                                           .min_items = 1,
                                                           .max_items = 100'000,
                                                           .schema = kChatMessageSchema}}));
  fields.push_back(json_field<&Conversation::tools, Body>(
      {.name = "tools",
       .when_unset = "[]",
       .help = "functions that the answer may call; 4 MiB at most",
       .field = {.form = FieldForm::kObjects, .max_items = 512, .schema = kChatToolSchema}}));
  fields.push_back(json_field<&Conversation::template_kwargs, Body>(template_kwargs_facts()));
  fields.push_back({effort_facts("reasoning_effort"), [](Body& body, Json&& value) {
                      body.conversation.reasoning_effort = value.get<std::string>();
                    }});
  fields.push_back(option_field<&Body::add_generation_prompt, Body>(
      flag_facts("add_generation_prompt", "true, false with continue_final_message",
                 "begin an answer after the messages")));
  fields.push_back(option_field<&Conversation::continue_final_message, Body>(
      flag_facts("continue_final_message", "false", "go on with the last message")));
}

Fields<CompletionBody> make_completion_fields() {
  using Body = CompletionBody;
  Fields<Body> fields = common_fields<Body>();
  fields.push_back(
      {{.name = "prompt",
        .help = "what the answers continue",
        .field = {.form = FieldForm::kPrompt, .required = true, .max_items = kMaxPrompts}},
       set_prompts});
  fields.push_back(
      option_field<&CommonRequest::max_tokens, Body>(max_tokens_facts("max_tokens", 0, "16")));
  fields.push_back(option_field<&CompletionRequest::echo, Body>(
      flag_facts("echo", "false", "the prompt before the answer; max_tokens may be 0")));
  fields.push_back(row_field<Body>(kLogprobsRow));
  fields.push_back(option_field<&CommonRequest::add_special_tokens, Body>(
      flag_facts("add_special_tokens", "true", "such as BOS before the prompt")));
  fields.push_back(option_field<&CommonRequest::parse_special, Body>(
      flag_facts("parse_special", "true", "special tokens written in the prompt count")));
  return fields;
}

Fields<ChatBody> make_chat_fields() {
  using Body = ChatBody;
  Fields<Body> fields = common_fields<Body>();
  add_conversation(fields, true);
  add_refusals(fields, chat_refusals());
  fields.push_back(option_field<&CommonRequest::max_tokens, Body>(
      max_tokens_facts("max_tokens", 1, "the room")));
  fields.push_back(option_field<&Body::max_completion_tokens, Body>(
      max_tokens_facts("max_completion_tokens", 1, "max_tokens")));
  fields.push_back(option_field<&Body::logprobs, Body>(
      flag_facts("logprobs", "false", "of the tokens of the answer")));
  fields.push_back(
      option_field<&Body::top_logprobs, Body>(renamed(kLogprobsRow.facts, "top_logprobs", "0")));
  fields.push_back(option_field<&CommonRequest::add_special_tokens, Body>(
      flag_facts("add_special_tokens", "false", "beside those of the template")));
  fields.push_back(
      {tool_choice_facts(), [](Body& body, Json&& value) { take_tool_choice(body, value); }});
  fields.push_back(option_field<&ChatRequest::parallel_tool_calls, Body>(
      flag_facts("parallel_tool_calls", "true", "false: one call in an answer")));
  fields.push_back(option_field<&ChatRequest::include_reasoning, Body>(
      flag_facts("include_reasoning", "true", "false: thoughts are left out")));
  return fields;
}

template <typename Body>
Fields<Body> input_fields(size_t min_prompt_bytes) {
  Fields<Body> fields = {model_field<Body>()};
  fields.push_back(option_field<&Body::prompt, Body>({.name = "prompt",
                                                      .kind = OptionKind::kText,
                                                      .help = "a text, or give messages",
                                                      .field = {.min_bytes = min_prompt_bytes}}));
  add_conversation(fields, false);
  fields.push_back(option_field<&Body::asked_special_tokens, Body>(
      flag_facts("add_special_tokens", "true, false with messages", "such as BOS")));
  fields.push_back(option_field<&TokenizeRequest::parse_special, Body>(
      flag_facts("parse_special", "true", "special tokens written in the prompt count")));
  return fields;
}

Fields<PinBody> make_pin_fields() {
  Fields<PinBody> fields = input_fields<PinBody>(1);
  fields.push_back(option_field<&PinRequest::name, PinBody>({.name = "name",
                                                             .kind = OptionKind::kText,
                                                             .help = "of the pin",
                                                             .field = {.required = true,
                                                                       .min_bytes = 1,
                                                                       .max_bytes = kMaxPinName,
                                                                       .alphabet = "._-",
                                                                       .no_leading_dot = true}}));
  fields.push_back(option_field<&PinRequest::cache_salt, PinBody>(kCacheSaltRow.facts));
  return fields;
}

Fields<TokenizeBody> make_tokenize_fields() {
  Fields<TokenizeBody> fields = input_fields<TokenizeBody>(0);
  fields.push_back(option_field<&TokenizeRequest::return_token_strs, TokenizeBody>(
      flag_facts("return_token_strs", "false", "the text of each token")));
  return fields;
}

Fields<DetokenizeRequest> make_detokenize_fields() {
  using Body = DetokenizeRequest;
  return {model_field<Body>(), option_field<&Body::tokens, Body>({.name = "tokens",
                                                                  .kind = OptionKind::kTokenIds,
                                                                  .help = "their ids",
                                                                  .field = {.required = true}})};
}

const FieldTable<DetokenizeRequest>& detokenize_fields() {
  static const FieldTable<DetokenizeRequest> table(make_detokenize_fields());
  return table;
}

}  // namespace

const BodyFacts kCompletionBody = {"CompletionRequest", [] { return completion_fields().facts(); },
                                   kCompletionRules};
const BodyFacts kChatBody = {"ChatRequest", [] { return chat_fields().facts(); }, kChatRules};
const BodyFacts kTokenizeBody = {"TokenizeRequest", [] { return tokenize_fields().facts(); },
                                 kInputRules};
const BodyFacts kPinBody = {"PinRequest", [] { return pin_fields().facts(); }, kInputRules};
const BodyFacts kDetokenizeBody = {"DetokenizeRequest", [] { return detokenize_fields().facts(); }};

const FieldTable<CompletionBody>& completion_fields() {
  static const FieldTable<CompletionBody> table(make_completion_fields());
  return table;
}

const FieldTable<ChatBody>& chat_fields() {
  static const FieldTable<ChatBody> table(make_chat_fields());
  return table;
}

const FieldTable<TokenizeBody>& tokenize_fields() {
  static const FieldTable<TokenizeBody> table(make_tokenize_fields());
  return table;
}

const FieldTable<PinBody>& pin_fields() {
  static const FieldTable<PinBody> table(make_pin_fields());
  return table;
}

// A body without rules between its members is read by its table alone.
Read<DetokenizeRequest> read_detokenize(std::string_view body, const RequestRules& rules) {
  return read_body<DetokenizeRequest>(body, rules, detokenize_fields(), DetokenizeRequest());
}

std::span<const OptionFacts> request_fields(RequestKind kind) {
  switch (kind) {
    case RequestKind::kCompletion:
      return kCompletionBody.fields();
    case RequestKind::kChat:
      return kChatBody.fields();
    case RequestKind::kTokenize:
      return kTokenizeBody.fields();
    case RequestKind::kPin:
      return kPinBody.fields();
    case RequestKind::kDetokenize:
      return kDetokenizeBody.fields();
  }
  return {};
}

}  // namespace sluice::api
