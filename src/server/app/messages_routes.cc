// The routes of the messages API. Their requests are chats once they are read.
#include <utility>

#include "io/json_type.h"
#include "server/api/answer/answer_body.h"
#include "server/api/messages/messages_fault.h"
#include "server/api/messages/messages_request.h"
#include "server/api/messages/messages_writer.h"
#include "server/app/routes.h"
#include "server/app/start_generation.h"

namespace sluice::server {
namespace {

void messages(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_messages(call.body, model->rules);
  api::ChatRequest* request = call.value_or_fail(read);
  if (request == nullptr || !call.has_model(request->model)) return;
  const auto options = answer_options(call, *request);
  options->reasoning_field = api::ReasoningField::kBoth;  // the API has a place for thoughts
  if (!take_conversation(call, *model, *request, *options)) return;
  auto writer = std::make_shared<api::MessagesWriter>(options, model->service.tokenizer());
  start_generation(call, std::move(model), *request, options, std::move(writer));
}

// The tokens of the prompt that the same body would get from /v1/messages.
void count_message_tokens(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_message_count(call.body, model->rules);
  const api::ChatRequest* request = call.value_or_fail(read);
  if (request == nullptr) return;
  if (const auto count = count_input_tokens(call, *model, *request)) {
    call.answer_json(api::json_line({{"input_tokens", *count}}));
  }
}

}  // namespace

void add_messages_routes(http::Router& router, ServerContext& context) {
  add_model_route(router, context,
                  {.pattern = "/v1/messages",
                   .answering = messages,
                   .facts = {.summary = "the next message, in Anthropic's form",
                             .body = &api::kMessageBody,
                             .streams = true},
                   .faults = api::message_fault_body});
  add_model_route(
      router, context,
      {.pattern = "/v1/messages/count_tokens",
       .answering = count_message_tokens,
       .facts = {.summary = "the size of a message's prompt", .body = &api::kMessageCountBody},
       .faults = api::message_fault_body});
}

}  // namespace sluice::server
