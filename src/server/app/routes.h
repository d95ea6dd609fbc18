// The routes of the server: what each path answers.
//
// Handlers run on the HTTP server's threads. Those that read a body or need the tokenizer pass the
// call to a worker; those that generate pass it on to the service. Thread rule: add_routes is
// called once, before the server starts.
#pragma once

#include "server/api/openapi.h"
#include "server/app/call.h"
#include "server/http/router.h"

namespace sluice::server {

// Adds all routes. `context` outlives the router.
void add_routes(http::Router& router, ServerContext& context);

// Adds OPTIONS to each path, for pages of other origins. Called once, after all other routes.
void add_preflight_routes(http::Router& router, ServerContext& context);

// The parts of it, by file. Status: /health, /live, /ping, /version, /openapi.json, /load,
// /metrics, /v1/models.
void add_status_routes(http::Router& router, ServerContext& context);
// Text: /tokenize, /detokenize, /apply-template, /tokenizer_info.
void add_text_routes(http::Router& router, ServerContext& context);
// Generation: /v1/completions, /v1/chat/completions and its input_tokens, and /render of both.
void add_generation_routes(http::Router& router, ServerContext& context);
// Messages: /v1/messages, /v1/messages/count_tokens.
void add_messages_routes(http::Router& router, ServerContext& context);
// /v1/responses and its input_tokens.
void add_response_routes(http::Router& router, ServerContext& context);

// The page, and the state of the engine for it: server/page/page_routes.h.
// Pins: /sluice/pins and /sluice/pins/{}.
void add_pin_routes(http::Router& router, ServerContext& context);

// What a handler of a route does with a call.
using Answering = void (*)(const Call& call, std::shared_ptr<const ServedModel> model);

struct ModelRoute {
  const char* method = "POST";
  const char* pattern;
  Answering answering;
  api::RouteFacts facts;                      // for /openapi.json
  http::FaultBody faults = http::fault_body;  // how all errors of this path are written
};

// Adds a route whose answer needs the model, and describes it. The call goes to a worker. Errors:
// 503 while there is no model that serves; those of fault_of_exception for what `answering` throws.
void add_model_route(http::Router& router, ServerContext& context, const ModelRoute& route);

}  // namespace sluice::server
