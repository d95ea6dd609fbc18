// One row a field, as in request_fields.cc; then the rules between members.
#include "server/api/messages/messages_request.h"

#include <array>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "io/json.h"
#include "io/json_type.h"
#include "server/api/messages/messages_conversation.h"
#include "server/api/request/body_reader.h"
#include "server/api/request/field_rows.h"
#include "server/api/request/item_schemas.h"
#include "server/api/request/structure_fields.h"
#include "server/api/request/tool_choice.h"

namespace sluice::api {
namespace {

struct MessagesBody : ChatRequest {
  Json system;
  Json thinking;
  Json choice;  // tool_choice
};

constexpr std::array kThinkingTypes = {"enabled", "adaptive", "between_tools", "disabled"};
constexpr std::array kChoiceTypes = {"auto", "any", "tool", "none"};

constexpr OptionFacts type_facts(std::span<const char* const> types) {
  return {
      .name = "type", .kind = OptionKind::kChoice, .choices = types, .field = {.required = true}};
}

constexpr std::array kThinkingFields = {
    type_facts(kThinkingTypes),
    hint("budget_tokens", "thoughts have no limit of their own"),
    hint("display", "thoughts are always in the answer"),
};

constexpr std::array kChoiceFields = {
    type_facts(kChoiceTypes),
    OptionFacts{.name = "name", .kind = OptionKind::kText, .when_unset = "needed by tool"},
    OptionFacts{.name = "disable_parallel_tool_use", .kind = OptionKind::kFlag},
};

// Beside those that all routes share.
constexpr std::array kMessagesRefusals = {
    hint("inference_geo", "the server is where it is"),
    hint("speed", "all requests are treated alike"),
    hint("diagnostics", "usage has what the cache found"),
    not_done("container", "[]", "it runs no code"),
    not_done("mcp_servers", "[[]]", "it calls no tools"),
};

template <auto Member>
Field<MessagesBody> message_json(const OptionFacts& facts) {
  return json_field<Member, MessagesBody>(facts);
}

Fields<MessagesBody> make_fields(bool needs_max_tokens) {
  using Body = MessagesBody;
  Fields<Body> fields = {model_field<Body>()};
  OptionFacts limit = max_tokens_facts("max_tokens", 0, "");
  limit.field.required = needs_max_tokens;
  fields.push_back(option_field<&CommonRequest::max_tokens, Body>(limit));
  fields.push_back(
      message_json<&Body::system>({.name = "system",
                                   .when_unset = "none",
                                   .help = "a text or blocks of text",
                                   .field = {.form = FieldForm::kAny, .schema = kSystemSchema}}));
  fields.push_back(
      message_json<&Conversation::messages>({.name = "messages",
                                             .help = "the conversation",
                                             .field = {.form = FieldForm::kObjects,
                                                       .required = true,
                                                       .min_items = 1,
                                                       .max_items = 100'000,
                                                       .schema = kBlockMessageSchema}}));
  fields.push_back(message_json<&Conversation::tools>(
      {.name = "tools",
       .when_unset = "[]",
       .help = "functions that the answer may call; 4 MiB at most",
       .field = {.form = FieldForm::kObjects, .max_items = 512, .schema = kBlockToolSchema}}));
  fields.push_back(message_json<&Body::choice>(
      object_facts("tool_choice", kChoiceFields, "auto",
                   "whether the answer may call tools, must, or which one")));
  fields.push_back(message_json<&Body::thinking>(object_facts(
      "thinking", kThinkingFields, "as the template has it", "whether thoughts are asked for")));
  fields.push_back(
      {{.name = "output_format",
        .when_unset = "none",
        .help = "as output_config.format",
        .field = {.form = FieldForm::kAny, .schema = kAnswerFormatSchema}},
       [](Body& body, Json&& value) { take_format(body.params, value, "output_format"); }});
  fields.push_back(message_json<&Conversation::template_kwargs>(template_kwargs_facts()));
  fields.push_back(
      option_field<&SamplingParams::stop, Body>(renamed(kStopRow.facts, "stop_sequences", "[]")));
  fields.push_back(option_field<&CommonRequest::stream, Body>(
      flag_facts("stream", "false", "send the answer as it comes")));
  fields.push_back(row_field<Body>(kIgnoreEosRow));
  add_sampling(fields);
  add_structures<Body>(fields);
  add_refusals(fields, shared_refusals());
  add_refusals<Body>(fields, kMessagesRefusals);
  return fields;
}

const FieldTable<MessagesBody>& field_table() {
  static const FieldTable<MessagesBody> table(make_fields(true));
  return table;
}

const FieldTable<MessagesBody>& count_table() {
  static const FieldTable<MessagesBody> table(make_fields(false));
  return table;
}

// Members of objects are checked where they are; that the type is there is seen here.
std::string_view type_of(const Json& object, std::string_view name) {
  const auto type = object.find("type");
  if (type == object.end() || type->is_null()) {
    refuse_field(name, fmt::format("{0}.type is missing; {0} must have it", name));
  }
  return type->get_ref<const std::string&>();
}

// The words are Anthropic's; what they ask for is what chats ask for.
void take_choice(MessagesBody& body) {
  if (body.choice.is_null()) return;
  const std::string_view type = type_of(body.choice, "tool_choice");
  if (type == "none") body.tool_choice = ToolChoice::kNone;
  if (type == "any") body.tool_choice = ToolChoice::kRequired;
  if (type == "tool") {
    const auto name = body.choice.find("name");
    if (name == body.choice.end() || name->is_null()) {
      refuse_field("tool_choice", "tool_choice.name is missing; the type tool must have it");
    }
    body.tool_choice = ToolChoice::kNamed;
    body.allowed_tools = {name->get<std::string>()};
  }
  check_tool_choice(body);
  const auto single = body.choice.find("disable_parallel_tool_use");
  body.parallel_tool_calls = single == body.choice.end() || *single != true;
}

// A last message of the assistant is the beginning of the answer.
void continue_last(Conversation& conversation) {
  const Json& last = conversation.messages.back();
  if (last["role"] != "assistant") return;
  if (last.contains("tool_calls")) {
    refuse_field("messages",
                 "the last of messages calls tools; their results must follow as tool_result");
  }
  if (last["content"] == "") {
    refuse_field("messages", "the last of messages is the assistant's and has no text to continue");
  }
  conversation.add_generation_prompt = false;
  conversation.continue_final_message = true;
}

void check(MessagesBody& body) {
  Conversation& conversation = body.conversation;
  body.return_progress = true;  // its events are pings, which all clients skip
  if (!body.thinking.is_null()) {
    conversation.enable_thinking = type_of(body.thinking, "thinking") != "disabled";
  }
  conversation.tools =
      chat_tools(std::move(conversation.tools), body.skipped_tools, body.strict_tools);
  check_tools(conversation.tools);
  take_choice(body);
  conversation.messages = chat_messages(std::move(body.system), std::move(conversation.messages));
  if (conversation.messages.empty()) {
    refuse_field("messages", "messages has nothing but parts that are left out");
  }
  continue_last(conversation);
}

}  // namespace

Read<ChatRequest> read_messages(std::string_view body, const RequestRules& rules) {
  return read_body<ChatRequest>(body, rules, field_table(), body_with_defaults<MessagesBody>(rules),
                                check);
}

Read<ChatRequest> read_message_count(std::string_view body, const RequestRules& rules) {
  return read_body<ChatRequest>(body, rules, count_table(), body_with_defaults<MessagesBody>(rules),
                                check);
}

std::span<const OptionFacts> message_fields() { return field_table().facts(); }
std::span<const OptionFacts> message_count_fields() { return count_table().facts(); }

}  // namespace sluice::api
