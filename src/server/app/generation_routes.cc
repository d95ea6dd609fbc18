// The routes that generate: a body becomes a checked request, its prompts become ids, and each
// choice becomes a request of the service.
#include <ctime>
#include <random>
#include <utility>

#include <nlohmann/json.hpp>

#include "server/api/request_prompt.h"
#include "server/app/generation.h"
#include "server/app/routes.h"

namespace sluice::server {
namespace {

using Ids = std::vector<int32_t>;

uint64_t random_seed() {
  thread_local std::mt19937_64 engine{std::random_device()()};
  return engine();
}

// What answers of both routes say alike.
std::shared_ptr<api::AnswerOptions> answer_options(const Call& call,
                                                   const api::CommonRequest& request) {
  const ServerState& state = call.context->state;
  return std::make_shared<api::AnswerOptions>(
      api::AnswerOptions{.request_id = call.exchange->request_id(),
                         .created = std::time(nullptr),
                         .model = request.model.value_or(state.names()[0]),
                         .queued = call.arrived,
                         .n = static_cast<size_t>(request.n),
                         .reasoning_field = call.context->reasoning_field,
                         .call_seed = random_seed(),
                         .logprobs = request.params.logprobs,
                         .prompt_logprobs = request.prompt_logprobs,
                         .prompt_only = request.max_tokens == 0,
                         .return_token_ids = request.return_token_ids,
                         .skip_special_tokens = request.params.skip_special_tokens,
                         .include_stop_text = request.include_stop_str_in_output,
                         .stop_token_ids = request.params.stop_token_ids,
                         .include_usage = request.include_usage,
                         .continuous_usage = request.continuous_usage_stats,
                         .return_progress = request.return_progress});
}

// One request of the service for each choice. Errors: those of resolve_max_tokens.
api::Read<std::vector<ServiceRequest>> service_requests(const api::CommonRequest& request,
                                                        const api::AnswerOptions& options,
                                                        const ServedModel& model) {
  std::vector<int32_t> limits;
  for (const api::AnswerPrompt& prompt : options.prompts) {
    auto limit =
        api::resolve_max_tokens(request, std::ssize(prompt.ids), model.service.max_model_len());
    if (auto* fault = std::get_if<http::Fault>(&limit)) return std::move(*fault);
    limits.push_back(std::get<int32_t>(limit));
  }
  std::vector<ServiceRequest> all;
  for (const api::Choice& choice : api::choices_of(request, options.prompts.size())) {
    ServiceRequest& one = all.emplace_back();
    one.prompt = options.prompts[choice.prompt].ids;
    one.params = request.params;
    one.params.max_tokens = limits[choice.prompt];
    one.params.seed = choice.seed;
  }
  return all;
}

void generate(const Call& call, std::shared_ptr<const ServedModel> model,
              const api::CommonRequest& request,
              std::shared_ptr<const api::AnswerOptions> options) {
  auto made = service_requests(request, *options, *model);
  std::vector<ServiceRequest>* choices = call.value_or_fail(made);
  if (choices == nullptr) return;
  // Without the body, which may be megabytes: the call is kept as long as the answer takes.
  Generation::start(
      {.context = call.context,
       .route = call.route,
       .body = call.context->log_text ? call.body : std::string(),
       .exchange = call.exchange,
       .arrived = call.arrived},
      std::move(model),
      {.options = std::move(options), .choices = std::move(*choices), .stream = request.stream});
}

// False after answering. What no engine does for a request must not be ignored: the answer of
// another salt would come from the same cache.
bool can_do(const Call& call, const api::CommonRequest& request) {
  if (!call.has_model(request.model)) return false;
  if (request.cache_salt.empty()) return true;
  call.fail({.message = "cache_salt is not supported; leave it out", .param = "cache_salt"});
  return false;
}

void complete(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_completion(call.body, model->rules);
  const api::CompletionRequest* request = call.value_or_fail(read);
  if (request == nullptr || !can_do(call, *request)) return;
  const auto options = answer_options(call, *request);
  options->route = api::AnswerRoute::kCompletions;
  options->echo = request->echo;
  for (const api::PromptInput& input : request->prompts) {
    auto encoded = api::input_ids(input,
                                  {.add_special_tokens = request->add_special_tokens,
                                   .parse_special = request->parse_special},
                                  model->service.tokenizer());
    Ids* ids = call.value_or_fail(encoded);
    if (ids == nullptr) return;
    api::AnswerPrompt& prompt = options->prompts.emplace_back();
    prompt.ids = std::move(*ids);
    // Kept as long as the answer takes, so only where the answer has it.
    if (const auto* text = std::get_if<std::string>(&input); text != nullptr && request->echo) {
      prompt.text = *text;
    }
  }
  generate(call, std::move(model), *request, options);
}

// The names of the functions that an answer may call.
std::vector<std::string> tool_names(const api::ChatRequest& request) {
  std::vector<std::string> names;
  if (request.tool_choice == api::ToolChoice::kNone) return names;
  for (const auto& tool : request.conversation.tools) {
    names.push_back(tool.at("function").at("name").get<std::string>());
  }
  return names;
}

void chat(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_chat(call.body, model->rules);
  const api::ChatRequest* request = call.value_or_fail(read);
  if (request == nullptr || !can_do(call, *request)) return;
  auto rendered = api::render_conversation(request->conversation, model->prompt_tools());
  const std::vector<TextSegment>* segments = call.value_or_fail(rendered);
  if (segments == nullptr) return;
  const auto options = answer_options(call, *request);
  options->route = api::AnswerRoute::kChat;
  options->tools = tool_names(*request);
  // Nothing here ends an answer after its first call, and dropping the others would hide that the
  // model made them. Without tools there is none, and an answer in Llama's form is one call at
  // most.
  if (!options->tools.empty() && !request->parallel_tool_calls &&
      model->format.tools != ToolFormat::kLlama3Json) {
    return call.fail({.message = "parallel_tool_calls is false, but the answers of this model may "
                                 "have several calls; leave it out, and use the first one",
                      .param = "parallel_tool_calls"});
  }
  options->format = format_of_answer(model->format, *segments, !options->tools.empty());
  options->prompts.emplace_back().ids =
      model->service.tokenizer().encode(*segments, request->add_special_tokens);
  generate(call, std::move(model), *request, options);
}

}  // namespace

void add_generation_routes(http::Router& router, ServerContext& context) {
  add_model_route(router, context, "POST", "/v1/completions", complete);
  add_model_route(router, context, "POST", "/v1/chat/completions", chat);
}

}  // namespace sluice::server
