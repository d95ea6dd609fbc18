// The rules between the members of a body; body_reader.h has those of each alone.
#include "server/api/request/request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/api/request/body_reader.h"
#include "server/api/request/tool_choice.h"

namespace sluice::api {
namespace {

// Rules that need more than one member, so that the order of members does not matter.
template <typename Body>
void check_common(Body& body) {
  if (body.best_of && *body.best_of != body.n) {
    refuse_field("best_of", fmt::format("best_of is {}; it must be n, {}, or left out",
                                        *body.best_of, body.n));
  }
  // As OpenAI's and vLLM's servers answer: who asks for usage so does not expect a body.
  if (body.has_stream_options && !body.stream) {
    refuse_field("stream_options", "stream_options need stream; set it to true or leave them out");
  }
  if (body.max_tokens && body.params.min_tokens > *body.max_tokens) {
    refuse_field("min_tokens", fmt::format("min_tokens is {}; it must be from 0 to max_tokens, {}",
                                           body.params.min_tokens, *body.max_tokens));
  }
  body.params.prompt_logprobs = body.prompt_logprobs;
}

// An echoed prompt has log-probabilities like those of the answer, in the same arrays.
void check_completion(CompletionBody& body) {
  if (body.max_tokens == 0 && !body.echo) {
    refuse_field("max_tokens", fmt::format("max_tokens is 0; it must be an integer from 1 to {}; 0 "
                                           "needs echo",
                                           std::numeric_limits<int32_t>::max()));
  }
  check_common(body);
  if (!body.echo || !body.params.logprobs) return;
  body.params.prompt_logprobs = std::max(body.params.prompt_logprobs, body.params.logprobs);
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

// The two names of the limit are one field: routers send both. The newer name counts, as in vLLM.
void check_chat(ChatBody& body) {
  if (body.max_completion_tokens) body.max_tokens = body.max_completion_tokens;
  check_common(body);
  if (body.top_logprobs.value_or(0) > 0 && !body.logprobs) {
    refuse_field("top_logprobs", fmt::format("top_logprobs is {}, but logprobs is false; set it to "
                                             "true",
                                             *body.top_logprobs));
  }
  if (body.logprobs) body.params.logprobs = body.top_logprobs.value_or(0);
  check_conversation(body.conversation, body.add_generation_prompt);
  for (const Json& tool : body.conversation.tools) {
    const Json& function = tool.at("function");
    if (is_strict(function)) body.strict_tools.push_back(function.at("name").get<std::string>());
  }
  check_tool_choice(body);
}

template <typename Body>
void check_input(Body& body) {
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
    // Of no use to a text, but what is wrong is wrong on every route.
    check_tools(body.conversation.tools);
    body.input = *std::move(body.prompt);
  }
}

}  // namespace

Read<CompletionRequest> read_completion(std::string_view body, const RequestRules& rules) {
  return read_body<CompletionRequest>(body, rules, completion_fields(),
                                      body_with_defaults<CompletionBody>(rules), check_completion);
}

Read<ChatRequest> read_chat(std::string_view body, const RequestRules& rules) {
  return read_body<ChatRequest>(body, rules, chat_fields(), body_with_defaults<ChatBody>(rules),
                                check_chat);
}

Read<TokenizeRequest> read_tokenize(std::string_view body, const RequestRules& rules) {
  return read_body<TokenizeRequest>(body, rules, tokenize_fields(), TokenizeBody(),
                                    check_input<TokenizeBody>);
}

Read<PinRequest> read_pin(std::string_view body, const RequestRules& rules) {
  return read_body<PinRequest>(body, rules, pin_fields(), PinBody(), check_input<PinBody>);
}

std::variant<int32_t, http::Fault> resolve_max_tokens(const CommonRequest& request,
                                                      int64_t num_prompt_tokens,
                                                      int64_t max_model_len) {
  const int64_t room = max_model_len - num_prompt_tokens;
  if (room < 1) {
    return http::Fault{
        .message = fmt::format("This model's maximum context length is {} tokens. However, the "
                               "prompt has {} tokens and the answer needs at least one; shorten "
                               "the prompt.",
                               max_model_len, num_prompt_tokens),
        .context_length = http::ContextLength{max_model_len, num_prompt_tokens, 1}};
  }
  const auto most = request.max_tokens ? request.max_tokens : request.default_max_tokens;
  const auto limit =
      std::clamp<int64_t>(most.value_or(std::numeric_limits<int32_t>::max()), 1, room);
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
