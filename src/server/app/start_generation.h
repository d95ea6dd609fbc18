// The way of a checked request to the engine, for all routes that generate, and for those that only
// show what they would generate from:
//
//   if (!call.has_model(request.model)) return;
//   const auto options = answer_options(call, request);
//   if (!take_conversation(call, *model, request, *options)) return;
//   auto writer = std::make_shared<SomeWriter>(options, model->service.tokenizer());
//   start_generation(call, std::move(model), request, options, std::move(writer));
//
// Functions that return false have answered the call. Thread rule: on a worker.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "server/api/answer/answer_options.h"
#include "server/api/answer/answer_writer.h"
#include "server/api/request/request.h"
#include "server/app/call.h"
#include "server/app/served_model.h"

namespace sluice::server {

// What answers of all routes say alike; the route, its prompts and its tools are still missing.
std::shared_ptr<api::AnswerOptions> answer_options(const Call& call,
                                                   const api::CommonRequest& request);

// False, with 400, if prompts x n are more answers than may ever wait. Asked before prompts are
// tokenized and answers get memory of their own: a small body can ask for 131,072 of them.
bool may_wait(const Call& call, const ServedModel& model, const api::CommonRequest& request,
              size_t num_prompts);

// Renders and tokenizes a chat, and sets what follows from it: prompts, format, tools, and the
// structure of calls. False, with 400, as of may_wait, for what the template refuses, and for
// errors of structured_calls.
bool take_conversation(const Call& call, const ServedModel& model, api::ChatRequest& request,
                       api::AnswerOptions& options);

// The tokens of the prompt that the request would have. Nothing after answering with an error.
std::optional<size_t> count_input_tokens(const Call& call, const ServedModel& model,
                                         const api::ChatRequest& request);
// Answers with them in the form of OpenAI's Responses API, which other servers also give for chats.
void answer_input_tokens(const Call& call, const ServedModel& model,
                         const api::ChatRequest& request);

// Submits the request; the answer leaves through `writer`. Sets clamped_max_tokens. Errors, as
// answers: those of resolve_max_tokens, 400 for more tokens than may ever wait, and those of the
// service.
void start_generation(const Call& call, std::shared_ptr<const ServedModel> model,
                      const api::CommonRequest& request,
                      std::shared_ptr<api::AnswerOptions> options,
                      std::shared_ptr<api::AnswerWriter> writer);

// Answers with what start_generation would submit, one of each prompt, after the same checks but
// that of the queue: a list for completions, which may have several prompts, one object for a chat.
void answer_rendered(const Call& call, const ServedModel& model, const api::CommonRequest& request,
                     api::AnswerOptions& options);

}  // namespace sluice::server
