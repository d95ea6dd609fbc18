// Engine: the public LLM for Python. Every call that computes runs without the GIL.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "core/error.h"
#include "counts.h"
#include "exclusive.h"
#include "io/json_type.h"
#include "options.h"
#include "text/json_text.h"
#include "text/observations_json.h"
#include "values.h"

namespace sluice::python {
namespace {

using Score = std::tuple<int, double, int, double>;

std::unique_ptr<LLM> load(const EngineOptions& options, Watch& watch) {
  return std::make_unique<LLM>(options, [&](const LoadProgress&) { watch.look(); });
}

class Engine {
 public:
  explicit Engine(const Keywords& options) : Engine(engine_options(options), Watch()) {}

  std::vector<RequestOutput> generate(const nb::typed<nb::list, nb::any>& prompts,
                                      const nb::typed<nb::list, Keywords>& params,
                                      nb::object on_progress);
  int64_t add_request(nb::handle prompt, const Keywords& params);
  std::vector<RequestOutput> step();
  void cancel_request(int64_t request_id) {
    llm_.use([&](LLM& llm) { llm.cancel_request(request_id); });
  }
  bool has_unfinished() {
    return llm_.use([](LLM& llm) { return llm.has_unfinished(); });
  }

  IdList encode(const nb::str& text, bool add_special_tokens, bool parse_special) const;
  nb::str decode(nb::handle token_ids) const;
  IdList chat_prompt(std::string_view messages, const Keywords& options) const;

  nb::typed<nb::list, Score> score(nb::handle token_ids);
  std::pair<FloatArray, nb::typed<nb::dict, nb::str, FloatArray>> trace(
      nb::handle token_ids, const std::vector<std::string>& taps);

  Keywords pin(const std::string& name, nb::handle prompt, const std::string& cache_salt);
  PinList pins() {
    return to_list(llm_.use([](LLM& llm) { return llm.pins(); }));
  }
  bool unpin(const std::string& name) {
    return llm_.use([&](LLM& llm) { return llm.unpin(name); });
  }
  bool flush_kv_store() {
    return llm_.use([](LLM& llm) { return llm.flush_kv_store(); });
  }

  nb::str observations();
  CountDict stats() {
    return to_dict(llm_.use([](LLM& llm) { return llm.stats(); }));
  }
  Keywords default_params() {
    return to_dict(llm_.use([](LLM& llm) { return llm.default_sampling_params(); }));
  }
  std::vector<std::string> notes() {
    return llm_.use([](LLM& llm) { return llm.notes(); });
  }
  std::vector<std::string> warnings() {
    return llm_.use([](LLM& llm) { return llm.warnings(); });
  }
  void write_timeline() {
    llm_.use([](LLM& llm) { llm.write_timeline(); });
  }
  const LLM& shared() const { return llm_.shared(); }

 private:
  Engine(const EngineOptions& options, Watch watch) : llm_([&] { return load(options, watch); }) {}

  Exclusive<LLM> llm_;
};

// LLM's precondition, which would end the process.
void require_idle(const LLM& llm) {
  if (!llm.has_unfinished()) return;
  fail(ErrorCode::kInvalidArgument,
       "a stream of this engine has not ended; read it to its end or close it first");
}

// Progress of a call as Python gets it: (finished, prompt tokens done, their total, generated).
std::vector<RequestOutput> Engine::generate(const nb::typed<nb::list, nb::any>& prompts,
                                            const nb::typed<nb::list, Keywords>& params,
                                            nb::object on_progress) {
  std::vector<Prompt> inputs;
  for (nb::handle prompt : prompts) inputs.push_back(to_prompt(prompt));
  std::vector<SamplingParams> settings;
  for (nb::handle one : params) settings.push_back(sampling_params(nb::cast<nb::dict>(one)));
  Watch watch(std::move(on_progress));
  GenerateOptions options;
  if (watch.reports()) {
    options.on_progress = [&](const Progress& p) {
      watch.look(p.num_finished, p.num_prompt_tokens_done, p.num_prompt_tokens_total,
                 p.num_generated_tokens);
    };
  }
  options.should_cancel = [&] {
    watch.look();  // an exception ends the call and its requests
    return false;
  };
  return llm_.use([&](LLM& llm) { return llm.generate(inputs, settings, options); });
}

int64_t Engine::add_request(nb::handle prompt, const Keywords& params) {
  const Prompt input = to_prompt(prompt);
  const SamplingParams settings = sampling_params(params);
  return llm_.use([&](LLM& llm) { return llm.add_request(input, settings); });
}

std::vector<RequestOutput> Engine::step() {
  Watch watch;
  const StepOptions options{.on_progress = [&](const PromptProgress&) { watch.look(); }};
  return llm_.use([&](LLM& llm) {
    if (!llm.has_unfinished()) return std::vector<RequestOutput>();
    return llm.step(options);
  });
}

IdList Engine::encode(const nb::str& text, bool add_special_tokens, bool parse_special) const {
  const std::string utf8 = to_string(text);
  std::vector<int32_t> ids;
  {
    const nb::gil_scoped_release release;
    ids = shared().encode(
        utf8, {.add_special_tokens = add_special_tokens, .parse_special = parse_special});
  }
  return to_list(ids);
}

nb::str Engine::decode(nb::handle token_ids) const {
  const std::vector<int32_t> ids = to_token_ids(token_ids);
  std::string text;
  {
    const nb::gil_scoped_release release;
    text = shared().decode(ids);
  }
  return to_text(text);
}

// `options`: JSON texts template_kwargs and tools, and the two flags of ChatOptions.
IdList Engine::chat_prompt(std::string_view messages, const Keywords& options) const {
  const ChatOptions chat{
      .template_kwargs = nb::cast<std::string>(options["template_kwargs"]),
      .tools = nb::cast<std::string>(options["tools"]),
      .add_generation_prompt = nb::cast<bool>(options["add_generation_prompt"]),
      .continue_final_message = nb::cast<bool>(options["continue_final_message"])};
  std::vector<int32_t> ids;
  {
    const nb::gil_scoped_release release;
    ids = shared().chat_prompt_json(messages, chat);
  }
  return to_list(ids);
}

Keywords Engine::pin(const std::string& name, nb::handle prompt, const std::string& cache_salt) {
  const Prompt input = to_prompt(prompt);
  Watch watch;
  GenerateOptions options;
  options.should_cancel = [&] {
    watch.look();  // an exception ends the call, which then pins nothing
    return false;
  };
  return to_dict(llm_.use([&](LLM& llm) { return llm.pin(name, input, options, cache_salt); }));
}

nb::typed<nb::list, Score> Engine::score(nb::handle token_ids) {
  const std::vector<int32_t> ids = to_token_ids(token_ids);
  Watch watch;
  LLM::ScoreOptions options;
  options.should_cancel = [&] { return watch.stops(); };
  const std::vector<TokenScore> scores = llm_.use([&](LLM& llm) {
    require_idle(llm);
    return llm.score(ids, options);
  });
  watch.rethrow();
  nb::list result;
  GilPauses pauses;
  for (const TokenScore& score : scores) {
    result.append(nb::make_tuple(score.token_id, static_cast<double>(score.logprob),
                                 score.top_token_id, static_cast<double>(score.top_logprob)));
    pauses.tick();
  }
  return nb::borrow<nb::typed<nb::list, Score>>(result);
}

std::pair<FloatArray, nb::typed<nb::dict, nb::str, FloatArray>> Engine::trace(
    nb::handle token_ids, const std::vector<std::string>& taps) {
  const std::vector<int32_t> ids = to_token_ids(token_ids);
  Watch watch;
  GenerateOptions options;
  options.should_cancel = [&] { return watch.stops(); };
  LLM::Trace trace = llm_.use([&](LLM& llm) {
    require_idle(llm);
    return llm.trace(ids, taps, options);
  });
  watch.rethrow();
  nb::typed<nb::dict, nb::str, FloatArray> arrays;
  for (TapTensor& tap : trace.taps) {
    const std::string name = tap.name;
    arrays[name.c_str()] = to_array(std::move(tap));
  }
  return {to_array(std::move(trace.logits)), arrays};
}

nb::str Engine::observations() {
  const Observations seen = llm_.use([](LLM& llm) { return llm.observations(); });
  return to_text(json_text(observations_json(seen)));
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<Engine>(m, "Engine", "An LLM. Calls from several threads run one after another.")
      .def(nb::init<const Keywords&>(), nb::arg("options"), "Loads the model.")
      .def("generate", &Engine::generate, nb::arg("prompts"), nb::arg("params"),
           nb::arg("on_progress").none(),
           "One output for each prompt (a text or token ids), with one dict of parameters each.")
      .def("add_request", &Engine::add_request, nb::arg("prompt"), nb::arg("params"))
      .def("step", &Engine::step, "One pass; the new parts of the outputs of add_request's.")
      .def("cancel_request", &Engine::cancel_request, nb::arg("request_id"))
      .def("has_unfinished", &Engine::has_unfinished)
      .def("encode", &Engine::encode, nb::arg("text"), nb::arg("add_special_tokens"),
           nb::arg("parse_special"))
      .def("decode", &Engine::decode, nb::arg("token_ids"))
      .def("chat_prompt", &Engine::chat_prompt, nb::arg("messages"), nb::arg("options"))
      .def("can_chat", [](const Engine& engine) { return engine.shared().can_chat(); })
      .def("chat_variables", [](const Engine& engine) { return engine.shared().chat_variables(); })
      .def("score", &Engine::score, nb::arg("token_ids"),
           "(id, log-probability, likeliest id, its log-probability) of each token but the first.")
      .def("trace", &Engine::trace, nb::arg("token_ids"), nb::arg("taps"))
      .def("pin", &Engine::pin, nb::arg("name"), nb::arg("prompt"), nb::arg("cache_salt"))
      .def("pins", &Engine::pins)
      .def("unpin", &Engine::unpin, nb::arg("name"))
      .def("flush_kv_store", &Engine::flush_kv_store,
           "Waits until all is written. False: nothing was for ten seconds.")
      .def("observations", &Engine::observations, "JSON, as `sluice run --json` prints it.")
      .def("stats", &Engine::stats)
      .def("default_params", &Engine::default_params)
      .def("notes", &Engine::notes)
      .def("warnings", &Engine::warnings)
      .def("write_timeline", &Engine::write_timeline)
      .def_prop_ro("max_model_len",
                   [](const Engine& engine) { return engine.shared().max_model_len(); })
      .def_prop_ro("kv_offload", [](const Engine& engine) { return engine.shared().kv_offload(); });
}

}  // namespace sluice::python
