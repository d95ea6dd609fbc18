// Errors of the tokenizer and of templates become faults here.
#include "server/api/request/request_prompt.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"

namespace sluice::api {
namespace {

constexpr std::string_view kThinkingSwitch = "enable_thinking";
constexpr std::string_view kEffort = "reasoning_effort";
constexpr std::string_view kKwargs = "chat_template_kwargs";

// Errors of a template begin with the place in the input: "messages[2].role is ...".
std::string place_of(const std::string& message) {
  const std::string place = message.substr(0, message.find_first_of(" :"));
  const std::string_view field = std::string_view(place).substr(0, place.find_first_of("[."));
  const bool is_field =
      std::ranges::any_of(request_fields(RequestKind::kChat),
                          [&](const OptionFacts& facts) { return facts.name == field; });
  return is_field ? place : "";
}

// Calls `make`, which may throw errors of the tokenizer and of templates.
template <typename Make>
auto read_prompt(Make make) -> Read<decltype(make())> {
  try {
    return make();
  } catch (const Error& error) {
    return http::Fault{.message = error.message(), .param = place_of(error.message())};
  }
}

}  // namespace

Read<Json> template_variables(const Conversation& conversation, const ChatTemplate& chat) {
  const std::vector<std::string>& known = chat.kwargs();
  Json variables = conversation.template_kwargs;
  for (const auto& [name, value] : variables.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    return http::Fault{
        .message =
            fmt::format("{} has \"{}\", which a request cannot give to this model's chat "
                        "template; it may give {}",
                        kKwargs, printable(name),
                        known.empty() ? "no variables" : fmt::format("{}", fmt::join(known, ", "))),
        .param = std::string(kKwargs)};
  }
  const auto set = [&](std::string_view name, Json value) {
    const bool is_read = std::ranges::find(known, name) != known.end();
    if (is_read && !variables.contains(name)) variables[std::string(name)] = std::move(value);
  };
  if (conversation.enable_thinking) set(kThinkingSwitch, *conversation.enable_thinking);
  if (const auto& effort = conversation.reasoning_effort) {
    if (*effort == "none") {
      set(kThinkingSwitch, false);
    } else {
      set(kEffort, *effort);
    }
  }
  return variables;
}

Read<std::vector<TextSegment>> render_conversation(const Conversation& conversation,
                                                   const PromptTools& tools) {
  // A model without a template has no variables either, and should say why.
  if (!tools.chat.problem().empty()) return http::Fault{.message = tools.chat.problem()};
  Read<Json> variables = template_variables(conversation, tools.chat);
  if (auto* fault = std::get_if<http::Fault>(&variables)) return std::move(*fault);
  return read_prompt([&] {
    return tools.chat.render({.messages = conversation.messages,
                              .tools = &conversation.tools,
                              .template_kwargs = &std::get<Json>(variables),
                              .add_generation_prompt = conversation.add_generation_prompt,
                              .continue_final_message = conversation.continue_final_message,
                              .now = &tools.now});
  });
}

std::string text_of(const std::vector<TextSegment>& segments) {
  std::string text;
  for (const TextSegment& segment : segments) text += segment.text;
  return text;
}

Read<std::vector<int32_t>> conversation_ids(const Conversation& conversation,
                                            bool add_special_tokens, const PromptTools& tools) {
  auto segments = render_conversation(conversation, tools);
  if (auto* fault = std::get_if<http::Fault>(&segments)) return std::move(*fault);
  return read_prompt([&] {
    return tools.tokenizer.encode(std::get<std::vector<TextSegment>>(segments), add_special_tokens);
  });
}

Read<std::vector<int32_t>> input_ids(const PromptInput& input, const EncodeOptions& options,
                                     const Tokenizer& tokenizer) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&input)) return *ids;
  return read_prompt(
      [&] { return tokenizer.encode_prompt(std::get<std::string>(input), options); });
}

Read<std::vector<int32_t>> ids_of(const TokenizeRequest& request, const PromptTools& tools) {
  if (const auto* conversation = std::get_if<Conversation>(&request.input)) {
    return conversation_ids(*conversation, request.add_special_tokens, tools);
  }
  return input_ids(
      std::get<std::string>(request.input),
      {.add_special_tokens = request.add_special_tokens, .parse_special = request.parse_special},
      tools.tokenizer);
}

}  // namespace sluice::api
