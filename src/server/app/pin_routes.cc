// Routes of pins: prefixes whose KV is kept under a name. A pin is made by a request of the service
// whose answer is its progress.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "io/json_type.h"
#include "server/api/answer/answer_body.h"
#include "server/api/answer/pin_writer.h"
#include "server/api/request/request_prompt.h"
#include "server/app/generation.h"
#include "server/app/routes.h"

namespace sluice::server {
namespace {

using Json = nlohmann::ordered_json;

// By the service's list, which is short.
std::optional<PinInfo> find_pin(const ServedModel& model, const std::string& name) {
  std::vector<PinInfo> pins = model.service.pins();
  const auto found = std::ranges::find(pins, name, &PinInfo::name);
  return found == pins.end() ? std::nullopt : std::optional(std::move(*found));
}

http::Fault no_such_pin(const std::string& name) {
  return {.status = 404, .message = fmt::format("there is no pin '{}'", name)};
}

// The ids that a request with the same input gets, so that it finds what the pin holds.
void make_pin(const Call& call, std::shared_ptr<const ServedModel> model) {
  auto read = api::read_pin(call.body, model->rules);
  const api::PinRequest* request = call.value_or_fail(read);
  if (request == nullptr || !call.has_model(request->model)) return;
  auto encoded = api::ids_of(*request, model->prompt_tools());
  std::vector<int32_t>* ids = call.value_or_fail(encoded);
  if (ids == nullptr) return;
  auto options = std::make_shared<api::AnswerOptions>(api::AnswerOptions{
      .request_id = call.exchange->request_id(), .queued = call.arrived, .return_progress = true});
  options->prompts.emplace_back().ids = *ids;
  auto writer = std::make_shared<api::PinWriter>(
      std::ssize(*ids), [model, name = request->name] { return find_pin(*model, name); });
  ServiceRequest pin{.prompt = std::move(*ids), .params = {}, .pin = request->name};
  pin.params.max_tokens = 1;
  pin.params.temperature = 0;
  pin.params.cache_salt = request->cache_salt;
  std::vector<ServiceRequest> choices;
  choices.push_back(std::move(pin));
  Generation::start({.context = call.context,
                     .route = call.route,
                     .body = call.context->log_text ? call.body : std::string(),
                     .exchange = call.exchange,
                     .arrived = call.arrived},
                    std::move(model),
                    {.options = std::move(options),
                     .writer = std::move(writer),
                     .choices = std::move(choices),
                     .stream = true});
}

void list_pins(const Call& call, std::shared_ptr<const ServedModel> model) {
  Json list = Json::array();
  for (const PinInfo& pin : model->service.pins()) list.push_back(api::pin_json(pin));
  call.answer_json(api::json_line({{"pins", std::move(list)}}));
}

void show_pin(const Call& call, std::shared_ptr<const ServedModel> model) {
  const std::optional<PinInfo> pin = find_pin(*model, call.captures.at(0));
  if (!pin) return call.fail(no_such_pin(call.captures.at(0)));
  call.answer_json(api::json_line(api::pin_json(*pin)));
}

// The memory is free after the engine's next step; the name is free at once.
void delete_pin(const Call& call, std::shared_ptr<const ServedModel> model) {
  const std::string& name = call.captures.at(0);
  if (!model->service.unpin(name)) return call.fail(no_such_pin(name));
  call.answer_json(api::json_line({{"name", name}, {"deleted", true}}));
}

}  // namespace

void add_pin_routes(http::Router& router, ServerContext& context) {
  constexpr std::string_view kPins = "prefixes whose KV is kept", kPin = "one of them";
  add_model_route(router, context,
                  {.pattern = "/sluice/pins",
                   .answering = make_pin,
                   .facts = {.summary = kPins, .body = &api::kPinBody, .streams = true}});
  add_model_route(router, context,
                  {.method = "GET",
                   .pattern = "/sluice/pins",
                   .answering = list_pins,
                   .facts = {.summary = kPins}});
  add_model_route(router, context,
                  {.method = "GET",
                   .pattern = "/sluice/pins/{}",
                   .answering = show_pin,
                   .facts = {.summary = kPin}});
  add_model_route(router, context,
                  {.method = "DELETE",
                   .pattern = "/sluice/pins/{}",
                   .answering = delete_pin,
                   .facts = {.summary = kPin}});
}

}  // namespace sluice::server
