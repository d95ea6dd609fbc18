// What every generating route does with a checked request: its options, its prompt, its choices.
#include "server/app/start_generation.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "io/json_type.h"
#include "server/api/answer/answer_body.h"
#include "server/api/answer/rendered_prompt.h"
#include "server/api/request/request_prompt.h"
#include "server/app/generation.h"
#include "server/app/structured_calls.h"
#include "sluice/error.h"

namespace sluice::server {
namespace {

// For requests that name no seed: answers of equal requests then differ, as users expect.
uint64_t random_seed() {
  thread_local std::mt19937_64 engine{std::random_device()()};
  return engine();
}

// Choices wait together. More than may ever wait are the client's to change: told to come again, it
// would come for ever. A single prompt may be larger than the limit of tokens.
std::optional<http::Fault> fault_of_size(int64_t num_choices, int64_t num_tokens,
                                         const ServiceLimits& limits) {
  if (num_choices > limits.max_waiting) {
    return http::Fault{
        .message = fmt::format("prompt x n asks for {} answers, but this server lets {} requests "
                               "wait (--max-waiting); ask for fewer at once",
                               num_choices, limits.max_waiting),
        .param = "n"};
  }
  if (num_choices == 1 || num_tokens <= *limits.max_waiting_tokens) return std::nullopt;
  return http::Fault{.message = fmt::format(
                         "the prompts of all {} answers have {} tokens, but this server lets {} "
                         "tokens wait (--max-waiting-tokens); ask for fewer answers at once",
                         num_choices, num_tokens, *limits.max_waiting_tokens),
                     .param = "n"};
}

// The structure begins after the thought that the answer begins with, or may begin with.
std::shared_ptr<const StructuredOutput> after_thoughts(
    const std::shared_ptr<const StructuredOutput>& structured, const AnswerFormat& format,
    const ServedModel& model) {
  const Tokenizer& tokenizer = model.service.tokenizer();
  const bool can_end = tokenizer.token_id(kCloseThought).has_value();
  if (!format.thinks || (!can_end && !format.starts_in_thought)) return structured;
  StructuredOutput after = *structured;
  if (tokenizer.token_id(kOpenThought)) after.thought_begin = kOpenThought;
  after.thought_end = kCloseThought;
  after.starts_in_thought = format.starts_in_thought;
  return std::make_shared<const StructuredOutput>(std::move(after));
}

// One request of the service for each choice. Each has a copy of its prompt and of all parameters,
// so their number and size are checked before. Errors: those of resolve_max_tokens and
// fault_of_size.
api::Read<std::vector<ServiceRequest>> service_requests(const api::CommonRequest& request,
                                                        api::AnswerOptions& options,
                                                        const ServedModel& model) {
  // Of each prompt, since a longer one leaves less room; the least is told in the answer.
  std::vector<int32_t> limits;
  int64_t num_tokens = 0;
  for (const api::AnswerPrompt& prompt : options.prompts) {
    auto limit =
        api::resolve_max_tokens(request, std::ssize(prompt.ids), model.service.max_model_len());
    if (auto* fault = std::get_if<http::Fault>(&limit)) return std::move(*fault);
    limits.push_back(std::get<int32_t>(limit));
    if (request.max_tokens && limits.back() < *request.max_tokens) {
      auto& least = options.clamped_max_tokens;
      least = std::min(least.value_or(limits.back()), limits.back());
    }
    num_tokens += std::ssize(prompt.ids) * request.n;
  }
  const int64_t num_choices = std::ssize(options.prompts) * request.n;
  if (auto fault = fault_of_size(num_choices, num_tokens, model.service.limits())) return *fault;
  // Shared by all choices: a schema may have many kilobytes, and is compiled once.
  const auto structured = request.params.structured
                              ? after_thoughts(request.params.structured, options.format, model)
                              : nullptr;
  std::vector<ServiceRequest> all;
  for (const api::Choice& choice : api::choices_of(request, options.prompts.size())) {
    ServiceRequest& one = all.emplace_back();
    one.prompt = options.prompts[choice.prompt].ids;
    one.params = request.params;
    one.params.max_tokens = limits[choice.prompt];
    one.params.seed = choice.seed;
    one.params.structured = structured;
  }
  return all;
}

// Beside members of the body, what lenient schemas ask for and is not enforced.
std::string ignored_fields(const api::CommonRequest& request, const ServedModel& model) {
  api::UnknownFields ignored = request.unknown;
  try {
    if (request.params.structured) {
      for (const std::string& part : model.service.ignored_parts(*request.params.structured)) {
        ignored.add(part);
      }
    }
  } catch (const Error&) {
    // The request itself has it, too, and is told.
  }
  return fmt::format("{}", fmt::join(ignored.names, ","));
}

}  // namespace

std::shared_ptr<api::AnswerOptions> answer_options(const Call& call,
                                                   const api::CommonRequest& request) {
  const ServerState& state = call.context->state;
  return std::make_shared<api::AnswerOptions>(api::AnswerOptions{
      .request_id = call.exchange->request_id(),
      .created = std::time(nullptr),
      .model = request.model.value_or(state.names()[0]),
      .system_fingerprint = "sluice-" + call.context->version,
      .queued = call.arrived,
      .n = static_cast<size_t>(request.n),
      .reasoning_field = call.context->reasoning_field,
      .call_seed = random_seed(),
      .logprobs = request.params.logprobs,
      .prompt_logprobs = request.prompt_logprobs,
      .token_names =
          request.return_tokens_as_token_ids ? api::TokenNames::kIds : api::TokenNames::kTexts,
      .prompt_only = request.max_tokens == 0,
      .return_token_ids = request.return_token_ids,
      .skip_special_tokens = request.params.skip_special_tokens,
      .include_stop_text = request.include_stop_str_in_output,
      .stop_token_ids = request.params.stop_token_ids,
      .include_usage = request.include_usage,
      .continuous_usage = request.continuous_usage_stats,
      .return_progress = request.return_progress,
      .timings_per_token = request.timings_per_token});
}

bool may_wait(const Call& call, const ServedModel& model, const api::CommonRequest& request,
              size_t num_prompts) {
  const int64_t num_choices = static_cast<int64_t>(num_prompts) * request.n;
  const auto fault = fault_of_size(num_choices, 0, model.service.limits());
  if (fault) call.fail(*fault);
  return !fault;
}

bool take_conversation(const Call& call, const ServedModel& model, api::ChatRequest& request,
                       api::AnswerOptions& options) {
  if (!may_wait(call, model, request, 1)) return false;
  auto rendered = api::render_conversation(request.conversation, model.prompt_tools());
  const std::vector<TextSegment>* segments = call.value_or_fail(rendered);
  if (segments == nullptr) return false;
  options.route = api::AnswerRoute::kChat;
  options.tools = callable_tools(request, model.format.tools);
  options.include_thoughts = request.include_reasoning;
  options.single_call = !request.parallel_tool_calls;
  options.format = format_of_answer(model.format, *segments, !options.tools.empty());
  auto structured = structured_calls(request, options.format.tools);
  auto* structure = call.value_or_fail(structured);
  if (structure == nullptr) return false;
  request.params.structured = std::move(*structure);
  options.prompts.emplace_back().ids =
      model.service.tokenizer().encode(*segments, request.add_special_tokens);
  return true;
}

std::optional<size_t> count_input_tokens(const Call& call, const ServedModel& model,
                                         const api::ChatRequest& request) {
  if (!call.has_model(request.model)) return std::nullopt;
  auto encoded =
      api::conversation_ids(request.conversation, request.add_special_tokens, model.prompt_tools());
  const std::vector<int32_t>* ids = call.value_or_fail(encoded);
  if (ids == nullptr) return std::nullopt;
  return ids->size();
}

void answer_input_tokens(const Call& call, const ServedModel& model,
                         const api::ChatRequest& request) {
  if (const auto count = count_input_tokens(call, model, request)) {
    call.answer_json(
        api::json_line({{"object", "response.input_tokens"}, {"input_tokens", *count}}));
  }
}

void start_generation(const Call& call, std::shared_ptr<const ServedModel> model,
                      const api::CommonRequest& request,
                      std::shared_ptr<api::AnswerOptions> options,
                      std::shared_ptr<api::AnswerWriter> writer) {
  auto made = service_requests(request, *options, *model);
  std::vector<ServiceRequest>* choices = call.value_or_fail(made);
  if (choices == nullptr) return;
  std::string ignored = ignored_fields(request, *model);
  // Without the body, which may be megabytes: the call is kept as long as the answer takes.
  Generation::start({.context = call.context,
                     .route = call.route,
                     .body = call.context->log_text ? call.body : std::string(),
                     .exchange = call.exchange,
                     .arrived = call.arrived,
                     .skipped_tools = request.skipped_tools,
                     .ignored_fields = std::move(ignored)},
                    std::move(model),
                    {.options = std::move(options),
                     .writer = std::move(writer),
                     .choices = std::move(*choices),
                     .stream = request.stream});
}

void answer_rendered(const Call& call, const ServedModel& model, const api::CommonRequest& request,
                     api::AnswerOptions& options) {
  auto made = service_requests(request, options, model);
  const std::vector<ServiceRequest>* choices = call.value_or_fail(made);
  if (choices == nullptr) return;
  const bool is_chat = options.route == api::AnswerRoute::kChat;
  nlohmann::ordered_json prompts = nlohmann::ordered_json::array();
  try {
    for (size_t i = 0; i < choices->size(); i += options.n) {
      const ServiceRequest& first = (*choices)[i];
      model.service.check(first);
      const std::string id = is_chat
                                 ? "chatcmpl-" + options.request_id
                                 : fmt::format("cmpl-{}-{}", options.request_id, prompts.size());
      prompts.push_back(api::rendered_prompt(id, first.prompt, first.params));
    }
  } catch (const Error& error) {
    return call.fail(fault_of_check(error));
  }
  call.answer_json(api::json_line(is_chat ? prompts.at(0) : prompts));
}

}  // namespace sluice::server
