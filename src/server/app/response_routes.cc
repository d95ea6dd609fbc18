// The route of OpenAI's Responses API. It keeps nothing: a request has its whole conversation.
#include <utility>

#include "server/api/responses/response_request.h"
#include "server/api/responses/response_writer.h"
#include "server/app/routes.h"
#include "server/app/start_generation.h"

namespace sluice::server {
namespace {

void respond(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_response(call.body, model->rules);
  api::ResponseRequest* request = call.value_or_fail(read);
  if (request == nullptr || !call.has_model(request->model)) return;
  const auto options = answer_options(call, *request);
  // Unasked: the pings of the stream have it.
  options->return_progress = true;
  if (!take_conversation(call, *model, *request, *options)) return;
  auto writer = std::make_shared<api::ResponseWriter>(options, std::move(request->facts),
                                                      model->service.tokenizer());
  start_generation(call, std::move(model), *request, options, std::move(writer));
}

void count_response_tokens(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_response(call.body, model->rules);
  if (const auto* request = call.value_or_fail(read)) answer_input_tokens(call, *model, *request);
}

}  // namespace

void add_response_routes(http::Router& router, ServerContext& context) {
  add_model_route(router, context,
                  {.pattern = "/v1/responses",
                   .answering = respond,
                   .facts = {.summary = "the next items of a conversation",
                             .body = &api::kResponseBody,
                             .streams = true}});
  add_model_route(
      router, context,
      {.pattern = "/v1/responses/input_tokens",
       .answering = count_response_tokens,
       .facts = {.summary = "the size of a response's prompt", .body = &api::kResponseBody}});
}

}  // namespace sluice::server
