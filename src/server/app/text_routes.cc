// Routes of the tokenizer and the chat template. They use the functions that requests use, so that
// they give exactly the ids that a request gets.
#include <utility>

#include "io/json_type.h"
#include "server/api/answer/answer_body.h"
#include "server/api/request/request_prompt.h"
#include "server/app/routes.h"

namespace sluice::server {
namespace {

using Json = nlohmann::ordered_json;

// Prompts and conversations; token_strs only if asked for, since it costs a text for each token.
void tokenize(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_tokenize(call.body, model->rules);
  const api::TokenizeRequest* request = call.value_or_fail(read);
  if (request == nullptr || !call.has_model(request->model)) return;
  auto encoded = api::ids_of(*request, model->prompt_tools());
  const std::vector<int32_t>* ids = call.value_or_fail(encoded);
  if (ids == nullptr) return;
  Json body = {{"count", ids->size()},
               {"max_model_len", model->service.max_model_len()},
               {"tokens", *ids},
               {"token_strs", nullptr}};
  if (request->return_token_strs) {
    body["token_strs"] = Json::array();
    for (const int32_t id : *ids) {
      body["token_strs"].push_back(model->service.tokenizer().decode({&id, 1}, false));
    }
  }
  call.answer_json(api::json_line(body));
}

// Special tokens are written out, so that the text leads back to the ids.
void detokenize(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_detokenize(call.body, model->rules);
  const api::DetokenizeRequest* request = call.value_or_fail(read);
  if (request == nullptr || !call.has_model(request->model)) return;
  const std::string text = model->service.tokenizer().decode(request->tokens, false);
  call.answer_json(api::json_line({{"prompt", text}}));
}

// The text of a chat with its special tokens, as the model gets it.
void apply_template(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_chat(call.body, model->rules);
  const api::ChatRequest* request = call.value_or_fail(read);
  if (request == nullptr || !call.has_model(request->model)) return;
  auto rendered = api::render_conversation(request->conversation, model->prompt_tools());
  const std::vector<TextSegment>* segments = call.value_or_fail(rendered);
  if (segments == nullptr) return;
  call.answer_json(api::json_line({{"prompt", api::text_of(*segments)}}));
}

// Made once, when the model was loaded.
void tokenizer_info(const Call& call, std::shared_ptr<const ServedModel> model) {
  call.answer_json(api::json_line(model->tokenizer_info));
}

}  // namespace

void add_text_routes(http::Router& router, ServerContext& context) {
  add_model_route(
      router, context,
      {.pattern = "/tokenize",
       .answering = tokenize,
       .facts = {.summary = "the ids of a prompt or a conversation", .body = &api::kTokenizeBody}});
  add_model_route(router, context,
                  {.pattern = "/detokenize",
                   .answering = detokenize,
                   .facts = {.summary = "the text of ids", .body = &api::kDetokenizeBody}});
  add_model_route(
      router, context,
      {.pattern = "/apply-template",
       .answering = apply_template,
       .facts = {.summary = "the text that the chat template writes", .body = &api::kChatBody}});
  add_model_route(router, context,
                  {.method = "GET",
                   .pattern = "/tokenizer_info",
                   .answering = tokenizer_info,
                   .facts = {.summary = "tokenizer_config.json"}});
}

}  // namespace sluice::server
