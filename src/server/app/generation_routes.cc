// The routes of OpenAI's completions and chats: a body becomes a checked request, its prompts
// become ids, and each choice becomes a request of the service.
#include <utility>

#include "server/api/answer/stream_chunks.h"
#include "server/api/request/request_prompt.h"
#include "server/app/routes.h"
#include "server/app/start_generation.h"

namespace sluice::server {
namespace {

using Ids = std::vector<int32_t>;

void answer(const Call& call, std::shared_ptr<const ServedModel> model,
            const api::CommonRequest& request, std::shared_ptr<api::AnswerOptions> options) {
  auto writer = std::make_shared<api::ChunkWriter>(options, model->service.tokenizer());
  start_generation(call, std::move(model), request, std::move(options), std::move(writer));
}

// The options of a completion with the ids of its prompts; null after answering with an error.
std::shared_ptr<api::AnswerOptions> completion_options(const Call& call, const ServedModel& model,
                                                       const api::CompletionRequest& request) {
  if (!call.has_model(request.model)) return nullptr;
  if (!may_wait(call, model, request, request.prompts.size())) return nullptr;
  auto options = answer_options(call, request);
  options->route = api::AnswerRoute::kCompletions;
  options->echo = request.echo;
  for (const api::PromptInput& input : request.prompts) {
    auto encoded = api::input_ids(
        input,
        {.add_special_tokens = request.add_special_tokens, .parse_special = request.parse_special},
        model.service.tokenizer());
    Ids* ids = call.value_or_fail(encoded);
    if (ids == nullptr) return nullptr;
    api::AnswerPrompt& prompt = options->prompts.emplace_back();
    prompt.ids = std::move(*ids);
    // Kept as long as the answer takes, so only where the answer has it.
    if (const auto* text = std::get_if<std::string>(&input); text != nullptr && request.echo) {
      prompt.text = *text;
    }
  }
  return options;
}

// As completion_options, of a chat.
std::shared_ptr<api::AnswerOptions> chat_options(const Call& call, const ServedModel& model,
                                                 api::ChatRequest& request) {
  if (!call.has_model(request.model)) return nullptr;
  auto options = answer_options(call, request);
  options->named_call = request.tool_choice == api::ToolChoice::kNamed;
  return take_conversation(call, model, request, *options) ? options : nullptr;
}

void complete(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_completion(call.body, model->rules);
  const api::CompletionRequest* request = call.value_or_fail(read);
  if (request == nullptr) return;
  const auto options = completion_options(call, *model, *request);
  if (options != nullptr) answer(call, std::move(model), *request, options);
}

void render_completion(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_completion(call.body, model->rules);
  const api::CompletionRequest* request = call.value_or_fail(read);
  if (request == nullptr) return;
  const auto options = completion_options(call, *model, *request);
  if (options != nullptr) answer_rendered(call, *model, *request, *options);
}

void chat(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_chat(call.body, model->rules);
  api::ChatRequest* request = call.value_or_fail(read);
  if (request == nullptr) return;
  const auto options = chat_options(call, *model, *request);
  if (options != nullptr) answer(call, std::move(model), *request, options);
}

void render_chat(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_chat(call.body, model->rules);
  api::ChatRequest* request = call.value_or_fail(read);
  if (request == nullptr) return;
  const auto options = chat_options(call, *model, *request);
  if (options != nullptr) answer_rendered(call, *model, *request, *options);
}

void count_chat_tokens(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_chat(call.body, model->rules);
  if (const auto* request = call.value_or_fail(read)) answer_input_tokens(call, *model, *request);
}

}  // namespace

void add_generation_routes(http::Router& router, ServerContext& context) {
  add_model_route(router, context,
                  {.pattern = "/v1/completions",
                   .answering = complete,
                   .facts = {.summary = "continuations of texts or token ids",
                             .body = &api::kCompletionBody,
                             .streams = true}});
  add_model_route(
      router, context,
      {.pattern = "/v1/chat/completions",
       .answering = chat,
       .facts = {.summary = "the next message", .body = &api::kChatBody, .streams = true}});
  add_model_route(router, context,
                  {.pattern = "/v1/chat/completions/input_tokens",
                   .answering = count_chat_tokens,
                   .facts = {.summary = "the size of a chat's prompt", .body = &api::kChatBody}});
  add_model_route(
      router, context,
      {.pattern = "/v1/completions/render",
       .answering = render_completion,
       .facts = {.summary = "the token ids of a completion's prompts, without running them",
                 .body = &api::kCompletionBody}});
  add_model_route(router, context,
                  {.pattern = "/v1/chat/completions/render",
                   .answering = render_chat,
                   .facts = {.summary = "the token ids of a chat's prompt, without running it",
                             .body = &api::kChatBody}});
}

}  // namespace sluice::server
