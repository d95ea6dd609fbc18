// One row a field; field_rows.h has the rows that further APIs share.
#include "server/api/request_fields.h"

#include <array>
#include <limits>

#include "server/api/field_rows.h"
#include "server/api/item_schemas.h"
#include "sluice/pin_info.h"

namespace sluice::api {
namespace {

constexpr std::array kStreamOptions = {
    FieldFacts{.name = "include_usage",
               .type = FieldType::kBool,
               .when_unset = "false",
               .help = "a last chunk with the numbers of tokens"},
    FieldFacts{.name = "continuous_usage_stats",
               .type = FieldType::kBool,
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
  const FieldFacts count = {.name = "n",
                            .type = FieldType::kInteger,
                            .min = 1,
                            .max = kMaxChoices,
                            .when_unset = "1",
                            .help = "answers for each prompt"};
  fields.push_back({count, set_member<&CommonRequest::n, Body>});
  FieldFacts best_of = count;
  best_of.name = "best_of";
  best_of.when_unset = "n";
  best_of.help = "must be n";
  fields.push_back({best_of, set_member<&Body::best_of, Body>});
  fields.push_back(
      {with_default(sampling_facts("prompt_logprobs", "of the prompt's tokens"), "none"),
       set_member<&CommonRequest::prompt_logprobs, Body>});
  fields.push_back({cache_salt_facts(), set_member<&SamplingParams::cache_salt, Body>});
}

// What is sent beside the text, and when.
template <typename Body>
void add_streams(Fields<Body>& fields) {
  fields.push_back({flag_facts("stream", "false", "send the answer as it comes"),
                    set_member<&CommonRequest::stream, Body>});
  fields.push_back({{.name = "stream_options",
                     .type = FieldType::kObject,
                     .members = kStreamOptions.data(),
                     .num_members = kStreamOptions.size(),
                     .when_unset = "{}",
                     .help = "what a stream has beside the answer; needs stream"},
                    set_stream_options<Body>});
  fields.push_back(
      {flag_facts("return_progress", "false", "chunks with the progress of the prompt"),
       set_member<&CommonRequest::return_progress, Body>});
  fields.push_back({flag_facts("return_token_ids", "false", "ids of prompt and answer"),
                    set_member<&CommonRequest::return_token_ids, Body>});
  fields.push_back({flag_facts("return_tokens_as_token_ids", "false",
                               "in log-probabilities token_id:N instead of the texts of tokens"),
                    set_member<&CommonRequest::return_tokens_as_token_ids, Body>});
  fields.push_back({flag_facts("timings_per_token", "false", "timings so far in chunks with text"),
                    set_member<&CommonRequest::timings_per_token, Body>});
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
  add_refusals(fields, shared_refusals());
  return fields;
}

// What a chat template is given, and what the ids of its text depend on.
template <typename Body>
void add_conversation(Fields<Body>& fields, bool required) {
  fields.push_back({{.name = "messages",
                     .type = FieldType::kObjects,
                     .required = required,
                     .min_items = 1,
                     .max_items = 100'000,
                     .schema = kChatMessageSchema,
                     .help = "the conversation"},
                    set_member<&Conversation::messages, Body>});
  fields.push_back({{.name = "tools",
                     .type = FieldType::kObjects,
                     .max_items = 512,
                     .schema = kChatToolSchema,
                     .when_unset = "[]",
                     .help = "functions that the answer may call; 4 MiB at most"},
                    set_member<&Conversation::tools, Body>});
  fields.push_back({template_kwargs_facts(), set_member<&Conversation::template_kwargs, Body>});
  fields.push_back(
      {effort_facts("reasoning_effort"), set_member<&Conversation::reasoning_effort, Body>});
  fields.push_back({flag_facts("add_generation_prompt", "true, false with continue_final_message",
                               "begin an answer after the messages"),
                    set_member<&Body::add_generation_prompt, Body>});
  fields.push_back({flag_facts("continue_final_message", "false", "go on with the last message"),
                    set_member<&Conversation::continue_final_message, Body>});
}

Fields<CompletionBody> make_completion_fields() {
  Fields<CompletionBody> fields = common_fields<CompletionBody>();
  fields.push_back({{.name = "prompt",
                     .type = FieldType::kPrompt,
                     .required = true,
                     .max_items = kMaxPrompts,
                     .help = "what the answers continue"},
                    set_prompts});
  fields.push_back({max_tokens_facts("max_tokens", 0, "16"),
                    set_member<&CommonRequest::max_tokens, CompletionBody>});
  fields.push_back(
      {flag_facts("echo", "false", "the prompt before the answer; max_tokens may be 0"),
       set_member<&CompletionRequest::echo, CompletionBody>});
  fields.push_back({with_default(sampling_facts("logprobs", "of the N likeliest tokens"), "none"),
                    set_member<&SamplingParams::logprobs, CompletionBody>});
  fields.push_back({flag_facts("add_special_tokens", "true", "such as BOS before the prompt"),
                    set_member<&CommonRequest::add_special_tokens, CompletionBody>});
  fields.push_back(
      {flag_facts("parse_special", "true", "special tokens written in the prompt count"),
       set_member<&CommonRequest::parse_special, CompletionBody>});
  return fields;
}

Fields<ChatBody> make_chat_fields() {
  Fields<ChatBody> fields = common_fields<ChatBody>();
  add_conversation(fields, true);
  add_refusals(fields, chat_refusals());
  fields.push_back({max_tokens_facts("max_tokens", 1, "the room"),
                    set_member<&CommonRequest::max_tokens, ChatBody>});
  fields.push_back({max_tokens_facts("max_completion_tokens", 1, "max_tokens"),
                    set_member<&ChatBody::max_completion_tokens, ChatBody>});
  fields.push_back({flag_facts("logprobs", "false", "of the tokens of the answer"),
                    set_member<&ChatBody::logprobs, ChatBody>});
  FieldFacts top = with_default(sampling_facts("logprobs", "of the N likeliest tokens"), "0");
  top.name = "top_logprobs";
  fields.push_back({top, set_member<&ChatBody::top_logprobs, ChatBody>});
  fields.push_back({flag_facts("add_special_tokens", "false", "beside those of the template"),
                    set_member<&CommonRequest::add_special_tokens, ChatBody>});
  fields.push_back({tool_choice_facts(), [](ChatBody& body, Json&& value) {
                      body.tool_choice = value == "none" ? ToolChoice::kNone : ToolChoice::kAuto;
                    }});
  fields.push_back({flag_facts("parallel_tool_calls", "true", "false: one call in an answer"),
                    set_member<&ChatRequest::parallel_tool_calls, ChatBody>});
  fields.push_back({flag_facts("include_reasoning", "true", "false: thoughts are left out"),
                    set_member<&ChatRequest::include_reasoning, ChatBody>});
  return fields;
}

template <typename Body>
Fields<Body> input_fields() {
  Fields<Body> fields = {model_field<Body>()};
  fields.push_back(
      {{.name = "prompt", .type = FieldType::kText, .help = "a text, or give messages"},
       set_member<&Body::prompt, Body>});
  add_conversation(fields, false);
  fields.push_back({flag_facts("add_special_tokens", "true, false with messages", "such as BOS"),
                    set_member<&Body::asked_special_tokens, Body>});
  fields.push_back(
      {flag_facts("parse_special", "true", "special tokens written in the prompt count"),
       set_member<&TokenizeRequest::parse_special, Body>});
  return fields;
}

Fields<PinBody> make_pin_fields() {
  Fields<PinBody> fields = input_fields<PinBody>();
  fields.push_back({{.name = "name",
                     .type = FieldType::kText,
                     .required = true,
                     .min_bytes = 1,
                     .max_bytes = kMaxPinName,
                     .alphabet = "._-",
                     .no_leading_dot = true,
                     .help = "of the pin"},
                    set_member<&PinRequest::name, PinBody>});
  fields.push_back({cache_salt_facts(), set_member<&PinRequest::cache_salt, PinBody>});
  return fields;
}

Fields<TokenizeBody> make_tokenize_fields() {
  Fields<TokenizeBody> fields = input_fields<TokenizeBody>();
  fields.push_back({flag_facts("return_token_strs", "false", "the text of each token"),
                    set_member<&TokenizeRequest::return_token_strs, TokenizeBody>});
  return fields;
}

Fields<DetokenizeBody> make_detokenize_fields() {
  return {model_field<DetokenizeBody>(),
          {{.name = "tokens", .type = FieldType::kTokenIds, .required = true, .help = "their ids"},
           set_member<&DetokenizeRequest::tokens, DetokenizeBody>}};
}

}  // namespace

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

const FieldTable<DetokenizeBody>& detokenize_fields() {
  static const FieldTable<DetokenizeBody> table(make_detokenize_fields());
  return table;
}

}  // namespace sluice::api
