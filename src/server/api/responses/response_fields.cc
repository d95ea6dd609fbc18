// Fields that other routes have under other names are refused with the name that they have here:
// ignoring a limit or a sampling option would change the answer.
#include "server/api/responses/response_fields.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/api/request/field_rows.h"
#include "server/api/request/item_schemas.h"
#include "server/api/request/structure_fields.h"
#include "server/api/request/tool_choice.h"

namespace sluice::api {
namespace {

constexpr std::string_view kNothingKept = "answers are never kept; send the whole conversation";

constexpr std::array kHints = {
    hint("stream_options", "what a stream has beside the answer"),
    hint("truncation", "prompts are never cut"),
    hint("max_tool_calls", "the client calls all tools"),
    hint("prompt_cache_options", "prefixes are always cached"),
    hint("access_programs", "who asks"),
    hint("background_options", "of requests in the background"),
    hint("moderation", "it moderates nothing"),
    hint("image", "inputs are texts"),
};

constexpr std::array kResponseRefusals = {
    not_done("previous_response_id", "[]", kNothingKept),
    not_done("conversation", "[]", kNothingKept),
    not_done("background", "[false]", kNothingKept),
    not_done("prompt", "[]", "it has no stored prompts; give input"),
    not_done("messages", "[]", "give input"),
    not_done("max_tokens", "[]", "give max_output_tokens"),
    not_done("max_completion_tokens", "[]", "give max_output_tokens"),
    not_done("reasoning_effort", "[]", "give reasoning.effort"),
    not_done("n", "[1]", "a response is one answer"),
    not_done("logprobs", "[false]", "put message.output_text.logprobs into include"),
};

constexpr std::array kFormatFields = {
    OptionFacts{.name = "format",
                .when_unset = "text",
                .help = "a JSON object, or what a schema allows",
                .field = {.form = FieldForm::kAny, .schema = kAnswerFormatSchema}},
    hint("verbosity", "how long the answer may be"),
};

// Not constexpr: the row of the effort is shared with chats.
const std::array<OptionFacts, 5>& reasoning_fields() {
  static const std::array<OptionFacts, 5> fields = {
      effort_facts("effort"), hint("summary", "thoughts are shown whole"),
      hint("generate_summary", "thoughts are shown whole"),
      hint("context", "the template decides which thoughts the model sees again"),
      hint("mode", "how the model is run")};
  return fields;
}

void set_text(ResponseBody& body, Json&& value) {
  const auto format = value.find("format");
  if (format == value.end() || format->is_null()) return;
  take_format(body.params, *format, "text.format");
  body.facts.format = std::move(*format);
}

void set_max_tokens(ResponseBody& body, Json&& value) {
  body.max_tokens = value.get<int32_t>();
  body.facts.max_output_tokens = std::move(value);
}

void set_reasoning(ResponseBody& body, Json&& value) {
  const auto effort = value.find("effort");
  if (effort == value.end() || effort->is_null()) return;
  body.conversation.reasoning_effort = effort->get<std::string>();
  body.facts.effort = *effort;
}

void set_tool_choice(ResponseBody& body, Json&& value) {
  take_tool_choice(body, value);
  body.facts.tool_choice = std::move(value);
}

void set_parallel(ResponseBody& body, Json&& value) {
  body.parallel_tool_calls = value.get<bool>();
  body.facts.parallel_tool_calls = body.parallel_tool_calls;
}

// Of what else a response may have only log-probabilities are made.
void set_include(ResponseBody& body, Json&& value) {
  body.has_logprobs =
      value.is_array() && std::ranges::find(value, "message.output_text.logprobs") != value.end();
}

template <auto Member>
Field<ResponseBody> response_option(const OptionFacts& facts) {
  return option_field<Member, ResponseBody>(facts);
}

template <auto Member>
Field<ResponseBody> response_json(const OptionFacts& facts) {
  return json_field<Member, ResponseBody>(facts);
}

// What the model is given.
void add_input(Fields<ResponseBody>& fields) {
  fields.push_back(response_json<&ResponseBody::input>(
      {.name = "input",
       .help = "what the user says, or the items of the conversation",
       .field = {.form = FieldForm::kTextOrObjects,
                 .required = true,
                 .min_items = 1,
                 .max_items = 100'000,
                 .schema = kResponseItemSchema}}));
  fields.push_back(
      response_option<&ResponseBody::instructions>({.name = "instructions",
                                                    .kind = OptionKind::kText,
                                                    .when_unset = "none",
                                                    .help = "a system message before the "
                                                            "input"}));
  fields.push_back(response_json<&Conversation::tools>(
      {.name = "tools",
       .when_unset = "[]",
       .help = "functions, also in namespaces; 4 MiB at most. Others are left out",
       .field = {.form = FieldForm::kObjects, .max_items = 512, .schema = kResponseToolSchema}}));
  fields.push_back({tool_choice_facts(), set_tool_choice});
  fields.push_back(
      {flag_facts("parallel_tool_calls", "true", "false: one call in an answer"), set_parallel});
  fields.push_back(
      {object_facts("reasoning", reasoning_fields(), "{}", "how the model thinks"), set_reasoning});
  fields.push_back(response_json<&Conversation::template_kwargs>(template_kwargs_facts()));
}

// What the answer is.
void add_output(Fields<ResponseBody>& fields) {
  fields.push_back({max_tokens_facts("max_output_tokens", 1, "the room"), set_max_tokens});
  fields.push_back(response_option<&CommonRequest::stream>(
      flag_facts("stream", "false", "send the answer as it comes")));
  fields.push_back({object_facts("text", kFormatFields, "{}", "the form of the answer"), set_text});
  fields.push_back({{.name = "include",
                     .help = "message.output_text.logprobs has an effect",
                     .field = {.form = FieldForm::kAny}},
                    set_include});
  fields.push_back(response_option<&ResponseFacts::top_logprobs>(
      renamed(kLogprobsRow.facts, "top_logprobs", "0")));
  fields.push_back(row_field<ResponseBody>(kCacheSaltRow));
}

// Hints that the answer repeats.
void add_repeated(Fields<ResponseBody>& fields) {
  fields.push_back(
      response_json<&ResponseFacts::metadata>(hint("metadata", "notes of the client")));
  fields.push_back(response_json<&ResponseFacts::user>(hint("user", "who asks")));
  fields.push_back(
      response_json<&ResponseFacts::safety_identifier>(hint("safety_identifier", "who asks")));
  fields.push_back(response_json<&ResponseFacts::prompt_cache_key>(
      hint("prompt_cache_key", "prefixes are always cached")));
}

// Those of all routes, but for names that mean something here.
void add_shared_refusals(Fields<ResponseBody>& fields) {
  for (const OptionFacts& facts : shared_refusals()) {
    const bool is_known = std::ranges::any_of(
        fields, [&](const auto& field) { return field.facts.name == facts.name; });
    if (!is_known) fields.push_back({facts, nullptr});
  }
}

Fields<ResponseBody> make_response_fields() {
  Fields<ResponseBody> fields = {model_field<ResponseBody>()};
  add_input(fields);
  add_output(fields);
  add_sampling(fields);
  add_ends(fields);
  add_repeated(fields);
  add_structures<ResponseBody>(fields);
  add_refusals<ResponseBody>(fields, kHints);
  add_refusals<ResponseBody>(fields, kResponseRefusals);
  add_shared_refusals(fields);
  return fields;
}

}  // namespace

const BodyFacts kResponseBody = {"ResponseRequest", [] { return response_fields().facts(); },
                                 kResponseRules};

const FieldTable<ResponseBody>& response_fields() {
  static const FieldTable<ResponseBody> table(make_response_fields());
  return table;
}

}  // namespace sluice::api
