// A body is read member by member through its table; then come the rules between members.
#include "server/api/request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"
#include "io/json.h"
#include "server/api/request_fields.h"

namespace sluice::api {
namespace {

constexpr size_t kMaxToolBytes = size_t{4} << 20;
constexpr size_t kMaxFunctionName = 256;

// `place` may have an index or a name after the field: "stop[3]".
http::Fault fault_of(const Error& error) {
  const std::string& place = error.context();
  return {.status = 400, .message = error.message(), .param = place.substr(0, place.find('['))};
}

// The reader's errors are about files of models and have the code of those.
Json parse_body(std::string_view body) {
  constexpr std::string_view kName = "the request's body";
  Json value;
  try {
    value = parse_ordered_json(body, kName);
  } catch (const Error& error) {
    refuse_field("", error.what());
  }
  if (!value.is_object()) {
    refuse_field("", fmt::format("{} is {}; it must be an object", kName, describe_json(value)));
  }
  return value;
}

// Before anything else, so that a body for another route is told what it lacks and not what is
// wrong with a member that this route does not need.
template <typename Body>
void require_members(const FieldTable<Body>& table, const Json& json, const FieldRules& rules) {
  for (const FieldFacts& facts : table.facts()) {
    if (!facts.required) continue;
    const auto member = json.find(facts.name);
    if (member != json.end() && !member->is_null()) continue;
    refuse_field(facts.name, fmt::format("{} is missing; it must be {}", facts.name,
                                         allowed_values(facts, rules)));
  }
}

// Values are moved out of the document: a prompt may be most of a large body.
template <typename Body>
void read_members(const FieldTable<Body>& table, std::string_view text, const FieldRules& rules,
                  Body& body) {
  Json json = parse_body(text);
  require_members(table, json, rules);
  for (auto& [name, value] : json.get_ref<Json::object_t&>()) {
    const Field<Body>* field = table.find(name);
    if (field == nullptr) {
      body.unknown.add(name);
    } else if (!value.is_null()) {
      check_field(field->facts, name, value, rules, body.unknown);
      if (field->set != nullptr) field->set(body, std::move(value));
    }
  }
}

// Rules that need more than one member, so that the order of members does not matter.
void check_common(CommonRequest& request, const std::optional<int32_t>& best_of) {
  if (best_of && *best_of != request.n) {
    refuse_field("best_of",
                 fmt::format("best_of is {}; it must be n, {}, or left out", *best_of, request.n));
  }
  if (request.max_tokens && request.params.min_tokens > *request.max_tokens) {
    refuse_field("min_tokens", fmt::format("min_tokens is {}; it must be from 0 to max_tokens, {}",
                                           request.params.min_tokens, *request.max_tokens));
  }
  request.params.prompt_logprobs = request.prompt_logprobs;
}

// An echoed prompt has log-probabilities like those of the answer, in the same arrays.
void check_completion(CompletionBody& body) {
  if (body.max_tokens == 0 && !body.echo) {
    refuse_field("max_tokens", fmt::format("max_tokens is 0; it must be an integer from 1 to {}; 0 "
                                           "needs echo",
                                           std::numeric_limits<int32_t>::max()));
  }
  check_common(body, body.best_of);
  if (!body.echo || !body.params.logprobs) return;
  body.params.prompt_logprobs = std::max(body.params.prompt_logprobs, body.params.logprobs);
}

// What calls are recognised by, and what every template reads. The rest belongs to the template.
void check_function(const Json& tool, size_t index) {
  const std::string place = fmt::format("tools[{}]", index);
  const auto type = tool.find("type");
  if (type != tool.end() && *type != "function") {
    refuse_field(
        place, fmt::format("{}.type is {}; it must be \"function\"", place, describe_json(*type)));
  }
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) {
    refuse_field(place, fmt::format("{}.function is missing or no object", place));
  }
  const auto name = function->find("name");
  const bool has_name = name != function->end() && name->is_string() &&
                        !name->get_ref<const std::string&>().empty() &&
                        name->get_ref<const std::string&>().size() <= kMaxFunctionName;
  if (!has_name) {
    refuse_field(
        place,
        fmt::format("{}.function.name is {}; it must be a text of 1 to {} bytes", place,
                    name == function->end() ? "missing" : describe_json(*name), kMaxFunctionName));
  }
  const auto parameters = function->find("parameters");
  if (parameters == function->end() || parameters->is_null() || parameters->is_object()) return;
  refuse_field(place, fmt::format("{}.function.parameters is {}; it must be an object", place,
                                  describe_json(*parameters)));
}

// Their text is measured as it would be written without spaces.
void check_tools(Json& tools) {
  if (tools.empty()) {
    tools = nullptr;
    return;
  }
  for (size_t i = 0; i < tools.size(); ++i) check_function(tools[i], i);
  const size_t num_bytes = tools.dump().size();
  if (num_bytes <= kMaxToolBytes) return;
  refuse_field("tools", fmt::format("tools has {} bytes; it must have at most {}", num_bytes,
                                    kMaxToolBytes));
}

// add_generation_prompt is true unless a message goes on; only a body that asks for both is wrong.
void check_conversation(Conversation& conversation, const std::optional<bool>& begin_answer) {
  check_tools(conversation.tools);
  conversation.add_generation_prompt = begin_answer.value_or(!conversation.continue_final_message);
  if (!conversation.add_generation_prompt || !conversation.continue_final_message) return;
  refuse_field("continue_final_message",
               "continue_final_message goes on with the last message and add_generation_prompt "
               "begins a new one; set one of them to false");
}

// The two names of the limit are one field: routers send both. Different values have no meaning.
void check_chat(ChatBody& body) {
  if (body.max_completion_tokens) {
    if (body.max_tokens && body.max_tokens != body.max_completion_tokens) {
      refuse_field("max_completion_tokens",
                   fmt::format("max_completion_tokens is {} and max_tokens {}; give one of them",
                               *body.max_completion_tokens, *body.max_tokens));
    }
    body.max_tokens = body.max_completion_tokens;
  }
  check_common(body, body.best_of);
  if (body.top_logprobs.value_or(0) > 0 && !body.logprobs) {
    refuse_field("top_logprobs", fmt::format("top_logprobs is {}, but logprobs is false; set it to "
                                             "true",
                                             *body.top_logprobs));
  }
  if (body.logprobs) body.params.logprobs = body.top_logprobs.value_or(0);
  check_conversation(body.conversation, body.add_generation_prompt);
}

void check_tokenize(TokenizeBody& body) {
  const bool has_messages = !body.conversation.messages.is_null();
  if (has_messages == body.prompt.has_value()) {
    refuse_field("prompt", fmt::format("prompt and messages are {}; give one of them",
                                       has_messages ? "both given" : "missing"));
  }
  body.add_special_tokens = body.asked_special_tokens.value_or(!has_messages);
  if (has_messages) {
    check_conversation(body.conversation, body.add_generation_prompt);
    body.input = std::move(body.conversation);
  } else {
    body.input = *std::move(body.prompt);
  }
}

// Reads a body into `body` and gives it as the request that it is made of.
template <typename Request, typename Body>
Read<Request> read(std::string_view text, const RequestRules& rules, const FieldTable<Body>& table,
                   Body body, void (*check)(Body&)) {
  try {
    read_members(table, text, {.vocab_size = rules.vocab_size}, body);
    if (check != nullptr) check(body);
    return static_cast<Request&&>(std::move(body));
  } catch (const Error& error) {
    return fault_of(error);
  }
}

// Members of the body replace those of the model's generation_config.json one by one.
template <typename Body>
Body body_with_defaults(const RequestRules& rules) {
  Body body;
  body.params = rules.defaults;
  return body;
}

}  // namespace

Read<CompletionRequest> read_completion(std::string_view body, const RequestRules& rules) {
  return read<CompletionRequest>(body, rules, completion_fields(),
                                 body_with_defaults<CompletionBody>(rules), check_completion);
}

Read<ChatRequest> read_chat(std::string_view body, const RequestRules& rules) {
  return read<ChatRequest>(body, rules, chat_fields(), body_with_defaults<ChatBody>(rules),
                           check_chat);
}

Read<TokenizeRequest> read_tokenize(std::string_view body, const RequestRules& rules) {
  return read<TokenizeRequest>(body, rules, tokenize_fields(), TokenizeBody(), check_tokenize);
}

Read<DetokenizeRequest> read_detokenize(std::string_view body, const RequestRules& rules) {
  return read<DetokenizeRequest, DetokenizeBody>(body, rules, detokenize_fields(), DetokenizeBody(),
                                                 nullptr);
}

std::span<const FieldFacts> request_fields(RequestKind kind) {
  switch (kind) {
    case RequestKind::kCompletion:
      return completion_fields().facts();
    case RequestKind::kChat:
      return chat_fields().facts();
    case RequestKind::kTokenize:
      return tokenize_fields().facts();
    case RequestKind::kDetokenize:
      return detokenize_fields().facts();
  }
  return {};
}

std::variant<int32_t, http::Fault> resolve_max_tokens(const CommonRequest& request,
                                                      int64_t num_prompt_tokens,
                                                      int64_t max_model_len) {
  const int64_t room = max_model_len - num_prompt_tokens;
  // The engine gives at least one token.
  const int64_t asked = std::max<int64_t>(request.max_tokens.value_or(1), 1);
  if (asked > room) {
    const std::string answer = request.max_tokens ? fmt::format("max_tokens is {}", asked)
                                                  : "the answer needs at least one";
    return http::Fault{
        .message = fmt::format("This model's maximum context length is {} tokens. However, the "
                               "prompt has {} tokens and {}; shorten the prompt{}.",
                               max_model_len, num_prompt_tokens, answer,
                               request.max_tokens ? " or lower max_tokens" : ""),
        .param = request.max_tokens && room > 0 ? "max_tokens" : "",
        .context_length = http::ContextLength{max_model_len, num_prompt_tokens, asked}};
  }
  int64_t limit = asked;
  if (!request.max_tokens) {
    limit = std::min<int64_t>(
        room, request.default_max_tokens.value_or(std::numeric_limits<int32_t>::max()));
  }
  if (request.params.min_tokens > limit) {
    return http::Fault{.message = fmt::format("min_tokens is {}; it must be from 0 to {}, the most "
                                              "tokens that the answer can have",
                                              request.params.min_tokens, limit),
                       .param = "min_tokens"};
  }
  return static_cast<int32_t>(limit);
}

std::vector<Choice> choices_of(const CommonRequest& request, size_t num_prompts) {
  constexpr int64_t kMaxSeed = std::numeric_limits<int64_t>::max();
  std::vector<Choice> choices;
  choices.reserve(num_prompts * static_cast<size_t>(request.n));
  for (size_t prompt = 0; prompt < num_prompts; ++prompt) {
    for (int32_t i = 0; i < request.n; ++i) {
      Choice choice{.index = static_cast<int32_t>(choices.size()), .prompt = prompt};
      if (const auto& seed = request.params.seed) {
        choice.seed = *seed <= kMaxSeed - i ? *seed + i : *seed - kMaxSeed + i - 1;
      }
      choices.push_back(choice);
    }
  }
  return choices;
}

}  // namespace sluice::api
