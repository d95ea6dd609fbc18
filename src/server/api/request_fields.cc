// One row a field. Ranges of sampling parameters are those of their rows in
// sluice/sampling_params.h, so that the API, the command line and the engine agree.
#include "server/api/request_fields.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "core/error.h"

namespace sluice::api {
namespace {

constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

constexpr std::array kStreamOptions = {
    FieldFacts{.name = "include_usage",
               .type = FieldType::kBool,
               .when_unset = "false",
               .help = "a last chunk with the numbers of tokens"},
    FieldFacts{.name = "continuous_usage_stats",
               .type = FieldType::kBool,
               .when_unset = "false",
               .help = "the numbers of tokens so far in every chunk"},
};

constexpr std::array<std::string_view, 2> kToolChoices = {"none", "auto"};
constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};

// The range of a parameter's row.
FieldFacts sampling_facts(std::string_view name, std::string_view help) {
  const auto* row = std::ranges::find_if(
      kSamplingRows, [&](const auto& candidate) { return candidate.facts.name == name; });
  SLUICE_CHECK(row != kSamplingRows.end(), "{} has no row", name);
  const OptionFacts& facts = row->facts;
  FieldType type = FieldType::kInteger;
  if (facts.kind == OptionKind::kNumber) type = FieldType::kNumber;
  if (facts.kind == OptionKind::kFlag) type = FieldType::kBool;
  if (facts.kind == OptionKind::kTokenIds) type = FieldType::kTokenIds;
  if (facts.kind == OptionKind::kTokenBiases) type = FieldType::kBiases;
  return {.name = facts.name,
          .type = type,
          .min = std::min(facts.min, facts.unset_from),  // -1 also says "not given"
          .max = facts.max,
          .number_min = facts.number_min,
          .number_max = facts.number_max,
          .above_min = facts.above_min,
          .when_unset = "as generation_config.json has it",
          .help = help};
}

FieldFacts flag_facts(std::string_view name, std::string_view when_unset, std::string_view help) {
  return {.name = name, .type = FieldType::kBool, .when_unset = when_unset, .help = help};
}

FieldFacts with_default(FieldFacts facts, std::string_view when_unset) {
  facts.when_unset = when_unset;
  return facts;
}

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

// REQUIRES: check_field let `value` through.
template <typename T>
void take(T& to, Json& value) {
  if constexpr (IsOptional<T>::value) {
    take(to.emplace(), value);
  } else if constexpr (std::is_same_v<T, Json>) {
    to = std::move(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    to = std::move(value.get_ref<std::string&>());
  } else {
    value.get_to(to);
  }
}

template <typename Member>
struct OwnerOf;
template <typename Owner, typename T>
struct OwnerOf<T Owner::*> {
  using Type = Owner;
};

// Stores a value in a member of the body, of its sampling parameters or of its conversation.
template <auto Member, typename Body>
void set_member(Body& body, Json&& value) {
  using Owner = typename OwnerOf<decltype(Member)>::Type;
  if constexpr (std::is_base_of_v<Owner, Body>) {
    take(body.*Member, value);
  } else if constexpr (std::is_same_v<Owner, SamplingParams>) {
    take(body.params.*Member, value);
  } else {
    take(body.conversation.*Member, value);
  }
}

// 0 and -1 also say "all", as in vLLM, whatever generation_config.json has.
template <typename Body>
void set_top_k(Body& body, Json&& value) {
  const auto top_k = value.get<int32_t>();
  body.params.top_k = top_k > 0 ? std::optional(top_k) : std::nullopt;
}

template <typename Body>
void set_stop(Body& body, Json&& value) {
  if (value.is_string()) value = Json::array({std::move(value)});
  body.params.stop = value.get<std::vector<std::string>>();
}

// Replaces those of the model's defaults, as lists and texts do.
template <typename Body>
void set_biases(Body& body, Json&& value) {
  body.params.logit_bias.clear();
  for (const auto& [id, bias] : value.items()) {
    body.params.logit_bias[static_cast<int32_t>(std::stol(id))] = bias.template get<float>();
  }
}

// Members that check_field let through are true, false or null.
template <typename Body>
void set_stream_options(Body& body, Json&& value) {
  const auto is_set = [&](const char* name) {
    const auto member = value.find(name);
    return member != value.end() && *member == true;
  };
  body.include_usage = is_set("include_usage");
  body.continuous_usage_stats = is_set("continuous_usage_stats");
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

template <typename Body>
using Fields = std::vector<Field<Body>>;

template <typename Body>
void add_refusals(Fields<Body>& fields, std::span<const FieldFacts> refusals) {
  for (const FieldFacts& facts : refusals) fields.push_back({facts, nullptr});
}

template <typename Body>
Field<Body> model_field() {
  return {{.name = "model",
           .type = FieldType::kText,
           .when_unset = "the first that is served",
           .help = "name of a served model"},
          set_member<&Body::model, Body>};
}

// How tokens are drawn. What generation_config.json cannot have is named with its own default.
template <typename Body>
void add_sampling(Fields<Body>& fields) {
  using Params = SamplingParams;
  const auto add = [&](FieldFacts facts, void (*set)(Body&, Json &&)) {
    fields.push_back({facts, set});
  };
  add(sampling_facts("temperature", "0 is greedy"), set_member<&Params::temperature, Body>);
  add(sampling_facts("top_p", "share of probability kept"), set_member<&Params::top_p, Body>);
  add(sampling_facts("top_k", "most likely tokens kept; 0 or -1 keeps all"), set_top_k<Body>);
  add(sampling_facts("min_p", "least probability kept, relative to the best"),
      set_member<&Params::min_p, Body>);
  add(sampling_facts("repetition_penalty", "above 1: tokens are less likely to come again"),
      set_member<&Params::repetition_penalty, Body>);
  add(with_default(sampling_facts("frequency_penalty", "for each time that the answer has a token"),
                   "0"),
      set_member<&Params::frequency_penalty, Body>);
  add(with_default(sampling_facts("presence_penalty", "for all tokens that the answer has"), "0"),
      set_member<&Params::presence_penalty, Body>);
  add(with_default(sampling_facts("logit_bias", "added to logits"), "{}"), set_biases<Body>);
  FieldFacts allowed = with_default(sampling_facts("allowed_token_ids", "no others"), "all");
  allowed.min_items = 1;
  add(allowed, set_member<&Params::allowed_token_ids, Body>);
  add(with_default(sampling_facts("seed", "same seed, same answer"), "drawn"),
      set_member<&Params::seed, Body>);
}

// What ends an answer, and what of the end its text keeps.
template <typename Body>
void add_ends(Fields<Body>& fields) {
  using Params = SamplingParams;
  fields.push_back({{.name = "stop",
                     .type = FieldType::kTexts,
                     .max_items = 16,
                     .min_bytes = 1,
                     .max_bytes = 1024,
                     .when_unset = "[]",
                     .help = "end before these texts"},
                    set_stop<Body>});
  FieldFacts ids = with_default(sampling_facts("stop_token_ids", "end at these tokens"), "[]");
  ids.max_items = 64;
  fields.push_back({ids, set_member<&Params::stop_token_ids, Body>});
  fields.push_back(
      {flag_facts("include_stop_str_in_output", "false", "keep the text that ended it"),
       set_member<&CommonRequest::include_stop_str_in_output, Body>});
  fields.push_back({with_default(sampling_facts("min_tokens", "no end before this many"), "0"),
                    set_member<&Params::min_tokens, Body>});
  fields.push_back({with_default(sampling_facts("ignore_eos", "go on after end tokens"), "false"),
                    set_member<&Params::ignore_eos, Body>});
  fields.push_back({flag_facts("skip_special_tokens", "true", "leave them out of the text"),
                    set_member<&Params::skip_special_tokens, Body>});
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
  fields.push_back({{.name = "cache_salt",
                     .type = FieldType::kText,
                     .min_bytes = 1,
                     .max_bytes = 128,
                     .alphabet = "_-",
                     .when_unset = "none",
                     .help = "prefixes are found by requests with the same salt only"},
                    set_member<&CommonRequest::cache_salt, Body>});
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
                     .help = "what a stream has beside the answer; without stream no effect"},
                    set_stream_options<Body>});
  fields.push_back(
      {flag_facts("return_progress", "false", "chunks with the progress of the prompt"),
       set_member<&CommonRequest::return_progress, Body>});
  fields.push_back({flag_facts("return_token_ids", "false", "ids of prompt and answer"),
                    set_member<&CommonRequest::return_token_ids, Body>});
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

// The room is not known before the prompt is tokenized; resolve_max_tokens checks it.
FieldFacts max_tokens_facts(std::string_view name, int64_t min, std::string_view when_unset) {
  return {.name = name,
          .type = FieldType::kInteger,
          .min = min,
          .max = kMaxInt,
          .when_unset = when_unset,
          .help = "tokens of an answer at most"};
}

// What a chat template is given, and what the ids of its text depend on.
template <typename Body>
void add_conversation(Fields<Body>& fields, bool required) {
  fields.push_back({{.name = "messages",
                     .type = FieldType::kObjects,
                     .required = required,
                     .min_items = 1,
                     .max_items = 100'000,
                     .help = "the conversation"},
                    set_member<&Conversation::messages, Body>});
  fields.push_back({{.name = "tools",
                     .type = FieldType::kObjects,
                     .max_items = 512,
                     .when_unset = "[]",
                     .help = "functions that the answer may call; 4 MiB at most"},
                    set_member<&Conversation::tools, Body>});
  fields.push_back({{.name = "chat_template_kwargs",
                     .type = FieldType::kObject,
                     .when_unset = "{}",
                     .help = "variables of the template"},
                    set_member<&Conversation::template_kwargs, Body>});
  fields.push_back({{.name = "reasoning_effort",
                     .type = FieldType::kChoice,
                     .choices = kEfforts,
                     .when_unset = "as the template has it",
                     .help = "none asks for an answer without thoughts"},
                    set_member<&Conversation::reasoning_effort, Body>});
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
  fields.push_back({max_tokens_facts("max_tokens", 0, "16, or the room if that is less"),
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
  fields.push_back({{.name = "tool_choice",
                     .type = FieldType::kChoice,
                     .choices = kToolChoices,
                     .when_unset = "auto",
                     .help = "whether the answer may call tools"},
                    [](ChatBody& body, Json&& value) {
                      body.tool_choice = value == "none" ? ToolChoice::kNone : ToolChoice::kAuto;
                    }});
  fields.push_back({flag_facts("parallel_tool_calls", "true", "several calls in an answer"),
                    set_member<&ChatRequest::parallel_tool_calls, ChatBody>});
  return fields;
}

Fields<TokenizeBody> make_tokenize_fields() {
  Fields<TokenizeBody> fields = {model_field<TokenizeBody>()};
  fields.push_back(
      {{.name = "prompt", .type = FieldType::kText, .help = "a text, or give messages"},
       set_member<&TokenizeBody::prompt, TokenizeBody>});
  add_conversation(fields, false);
  fields.push_back({flag_facts("add_special_tokens", "true, false with messages", "such as BOS"),
                    set_member<&TokenizeBody::asked_special_tokens, TokenizeBody>});
  fields.push_back(
      {flag_facts("parse_special", "true", "special tokens written in the prompt count"),
       set_member<&TokenizeRequest::parse_special, TokenizeBody>});
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

const FieldTable<DetokenizeBody>& detokenize_fields() {
  static const FieldTable<DetokenizeBody> table(make_detokenize_fields());
  return table;
}

}  // namespace sluice::api
