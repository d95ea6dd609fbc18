// Service: an EngineService for Python. Its events wait in a mailbox for a thread of Python.
#include <limits>
#include <memory>
#include <mutex>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "core/error.h"
#include "counts.h"
#include "errors.h"
#include "gil.h"
#include "mailbox.h"
#include "options.h"
#include "service/engine_service.h"
#include "tokenizer/tokenizer.h"
#include "values.h"

namespace sluice::python {
namespace {

// (key, delta or None, reason of the end or None, exception or None).
using LetterTuple =
    nb::typed<nb::tuple, int, std::optional<RequestOutput>, std::optional<std::string>, nb::object>;

class Service {
  // The service, which lives until the caller drops it. Errors: ValueError after `close`.
  std::shared_ptr<EngineService> service();

  // Returns call(service), run without the GIL: if another thread closes the service meanwhile, its
  // memory is released here, which takes long.
  template <typename Call>
  auto use(const Call& call) {
    const nb::gil_scoped_release release;
    return call(*service());
  }

 public:
  Service(const Keywords& options, int64_t max_waiting);
  ~Service() { close(); }
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // `pin`: the name to hold the prompt under, or empty. Returns the request's id and "", or -1 and
  // why it was refused.
  std::pair<int64_t, std::string> submit(int64_t key, nb::handle prompt, const Keywords& params,
                                         const std::string& pin);
  bool cancel(int64_t request_id);
  nb::typed<nb::list, LetterTuple> take();
  Keywords snapshot();
  void close();

  IdList encode(const nb::str& text, bool add_special_tokens, bool parse_special);
  nb::str decode(nb::handle token_ids);
  PinList pins() {
    return to_list(use([](EngineService& service) { return service.pins(); }));
  }
  bool unpin(const std::string& name) {
    return use([&](EngineService& service) { return service.unpin(name); });
  }
  Keywords default_params() {
    return to_dict(use([](EngineService& service) { return service.default_sampling_params(); }));
  }
  int64_t max_model_len() {
    return use([](EngineService& service) { return service.max_model_len(); });
  }
  std::vector<std::string> notes() {
    return use([](EngineService& service) { return service.notes(); });
  }
  std::vector<std::string> warnings() {
    return use([](EngineService& service) { return service.warnings(); });
  }

 private:
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::mutex mutex_;
  std::shared_ptr<EngineService> service_;  // by the mutex; null: closed
};

Service::Service(const Keywords& options, int64_t max_waiting) {
  const EngineOptions engine = engine_options(options);
  const nb::gil_scoped_release release;
  // Loading runs on the engine's thread, while this one waits. Ctrl-C takes effect after it.
  service_ = std::make_shared<EngineService>(
      engine, ServiceLimits{.max_waiting = max_waiting,
                            .max_waiting_tokens = std::numeric_limits<int64_t>::max()});
}

std::shared_ptr<EngineService> Service::service() {
  const std::lock_guard lock(mutex_);
  if (!service_) throw nb::value_error("the engine was shut down");
  return service_;
}

std::pair<int64_t, std::string> Service::submit(int64_t key, nb::handle prompt,
                                                const Keywords& params, const std::string& pin) {
  Prompt input = to_prompt(prompt);
  SamplingParams settings = sampling_params(params);
  const nb::gil_scoped_release release;
  const std::shared_ptr<EngineService> service = this->service();
  if (const auto* text = std::get_if<std::string>(&input)) {
    input = service->tokenizer().encode(*text);
  }
  const Submitted answer = service->submit(
      {.prompt = std::get<std::vector<int32_t>>(std::move(input)),
       .params = std::move(settings),
       .pin = pin},
      [mailbox = mailbox_, key](RequestEvent&& event) { mailbox->put(key, std::move(event)); });
  if (answer.accepted()) return {answer.request_id, ""};
  return {-1, std::string(refusal_name(*answer.refusal))};
}

// A closed service has cancelled all.
bool Service::cancel(int64_t request_id) {
  const nb::gil_scoped_release release;
  std::shared_ptr<EngineService> service;
  {
    const std::lock_guard lock(mutex_);
    service = service_;
  }
  return service && service->cancel(request_id);
}

nb::typed<nb::list, LetterTuple> Service::take() {
  Mailbox::Letters letters;
  {
    const nb::gil_scoped_release release;
    letters = mailbox_->take();
  }
  nb::list result;
  GilPauses pauses;
  for (auto& [key, letter] : letters) {
    const nb::object none = nb::none();
    nb::object output = letter.output ? nb::cast(std::move(*letter.output)) : none;
    nb::object reason = none, error = none;
    if (letter.end) {
      reason = nb::cast(std::string(end_reason_name(letter.end->reason)));
      if (letter.end->error) error = to_exception(*letter.end->error);
    }
    result.append(nb::make_tuple(key, output, reason, error));
    pauses.tick();
  }
  return nb::borrow<nb::typed<nb::list, LetterTuple>>(result);
}

const char* state_name(ServiceState state) {
  if (state == ServiceState::kServing) return "serving";
  return state == ServiceState::kDraining ? "draining" : "dead";
}

Keywords Service::snapshot() {
  const ServiceSnapshot now = use([](EngineService& service) { return service.snapshot(); });
  Keywords result;
  result["state"] = state_name(now.state);
  result["error"] = now.error ? to_exception(*now.error) : nb::object(nb::none());
  result["num_accepted"] = now.num_accepted;
  result["num_waiting"] = now.num_waiting;
  result["num_running"] = now.num_running;
  nb::dict ended;
  for (size_t i = 0; i < kNumEndReasons; ++i) {
    const std::string reason(end_reason_name(static_cast<EndReason>(i)));
    ended[reason.c_str()] = now.num_ended[i];
  }
  result["num_ended"] = ended;
  result["num_generated_tokens"] = now.stats.num_generated_tokens;
  result["num_prompt_tokens"] = now.stats.num_prompt_tokens;
  result["num_cached_tokens"] = now.stats.num_cached_tokens;
  set_store_counts(result, now.stats);
  result["num_kv_blocks"] = now.kv.num_blocks;
  result["num_kv_blocks_used"] = now.kv.num_used;
  result["num_kv_blocks_cached"] = now.kv.num_cached;
  return result;
}

// Aborts all requests. The last of the callers that still hold the service destroys it.
void Service::close() {
  const nb::gil_scoped_release release;
  std::shared_ptr<EngineService> service;
  {
    const std::lock_guard lock(mutex_);
    service = std::exchange(service_, nullptr);
  }
  if (service) service->drain(std::chrono::nanoseconds(0));
  service.reset();
  mailbox_->close();
}

IdList Service::encode(const nb::str& text, bool add_special_tokens, bool parse_special) {
  const std::string utf8 = to_string(text);
  return to_list(use([&](EngineService& service) {
    return service.tokenizer().encode_prompt(
        utf8, {.add_special_tokens = add_special_tokens, .parse_special = parse_special});
  }));
}

nb::str Service::decode(nb::handle token_ids) {
  const std::vector<int32_t> ids = to_token_ids(token_ids);
  return to_text(use([&](EngineService& service) {
    return service.tokenizer().decode(ids, /*skip_special=*/false);
  }));
}

}  // namespace

void bind_service(nb::module_& m) {
  nb::class_<Service>(m, "Service", "An engine on a thread of its own, for many callers.")
      .def(nb::init<const Keywords&, int64_t>(), nb::arg("options"), nb::arg("max_waiting"))
      .def("submit", &Service::submit, nb::arg("key"), nb::arg("prompt"), nb::arg("params"),
           nb::arg("pin"),
           "Queues a request. Its letters carry `key`. (id, \"\"), or (-1, why it was refused).")
      .def("cancel", &Service::cancel, nb::arg("request_id"))
      .def("take", &Service::take,
           "Waits for letters: (key, new Output, reason of the end, exception). [] after close.")
      .def("snapshot", &Service::snapshot)
      .def("pins", &Service::pins)
      .def("unpin", &Service::unpin, nb::arg("name"))
      .def("close", &Service::close, "Aborts all requests and ends the engine's thread.")
      .def("encode", &Service::encode, nb::arg("text"), nb::arg("add_special_tokens"),
           nb::arg("parse_special"))
      .def("decode", &Service::decode, nb::arg("token_ids"))
      .def("default_params", &Service::default_params)
      .def("notes", &Service::notes)
      .def("warnings", &Service::warnings)
      .def_prop_ro("max_model_len", &Service::max_model_len);
}

}  // namespace sluice::python
