// Implements sluice/llm.h over LlmEngine: prompts to ids, requests to the engine, outputs in order.
#include "sluice/llm.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "engine/score_decoded.h"
#include "model/head_padding.h"
#include "tokenizer/chat_template.h"

namespace sluice {

namespace {

// Collects the outputs of one `generate` call and reports its progress.
class Collector {
 public:
  Collector(size_t num_requests, const GenerateOptions& options, const LlmEngine& engine)
      : options_(options), engine_(engine), before_(engine.stats()), outputs_(num_requests) {
    progress_.num_requests = static_cast<int64_t>(num_requests);
  }

  // `index`: place of the prompt in the call, and of its output in the result.
  void add(SequenceId id, size_t index, size_t num_prompt_tokens) {
    index_of_[id.value] = index;
    progress_.num_prompt_tokens_total += static_cast<int64_t>(num_prompt_tokens);
  }

  bool has(int64_t request_id) const { return index_of_.contains(request_id); }

  // Adds a delta to its request's output, after showing it to the caller.
  // REQUIRES: has(output.request_id).
  void take(RequestOutput output) {
    const size_t index = index_of_.at(output.request_id);
    progress_.num_finished += output.finished() ? 1 : 0;
    const bool is_new = !output.token_ids.empty() || !output.prompt_logprobs.empty() ||
                        output.finished();  // else progress alone
    if (options_.on_output && is_new) options_.on_output(index, output);
    outputs_[index].append(std::move(output));
  }

  // Calls on_progress. `num_rows_done`: rows done of the running pass. The reported number of
  // prompt tokens never falls, even if a pass is cancelled or a sequence is computed again, and
  // never exceeds the total, which recomputed tokens would.
  void report(int64_t num_rows_done = 0) {
    if (!options_.on_progress) return;
    const EngineStats now = engine_.stats();
    const int64_t num_done = now.num_prompt_tokens - before_.num_prompt_tokens +
                             now.num_cached_tokens - before_.num_cached_tokens +
                             now.num_stored_tokens - before_.num_stored_tokens + num_rows_done;
    progress_.num_prompt_tokens_done = std::min(
        std::max(progress_.num_prompt_tokens_done, num_done), progress_.num_prompt_tokens_total);
    progress_.num_generated_tokens = now.num_generated_tokens - before_.num_generated_tokens;
    options_.on_progress(progress_);
  }

  bool done() const { return progress_.num_finished == progress_.num_requests; }
  const std::map<int64_t, size_t>& index_of() const { return index_of_; }
  std::vector<RequestOutput> outputs() { return std::move(outputs_); }

 private:
  const GenerateOptions& options_;
  const LlmEngine& engine_;
  const EngineStats before_;  // counts of earlier calls, to subtract
  std::vector<RequestOutput> outputs_;
  std::map<int64_t, size_t> index_of_;  // by request id
  Progress progress_;                   // as last reported
};

// Keeps what a callback within a pass throws, which cancels the pass, until the engine is between
// steps.
class CallGuard {
 public:
  // Runs `call` unless an earlier one has failed.
  template <typename Call>
  void run(const Call& call) {
    if (error_) return;
    try {
      call();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  bool has_failed() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

// Callbacks of a `generate` call within a pass.
class PassCallbacks {
 public:
  PassCallbacks(const GenerateOptions& options, Collector& collector, int64_t min_rows)
      : options_(options),
        collector_(collector),
        watch_{
            .on_progress = [this](int64_t rows) { guard_.run([&] { collector_.report(rows); }); },
            .should_cancel = [this] { return should_cancel(); },
            .min_rows = min_rows} {}

  // Null if the caller has no callback, so that passes run without waits.
  const PassWatch* watch() const {
    return options_.on_progress || options_.should_cancel ? &watch_ : nullptr;
  }

  bool should_cancel() {
    guard_.run([&] {
      is_cancelled_ = is_cancelled_ || (options_.should_cancel && options_.should_cancel());
    });
    return is_cancelled_ || guard_.has_failed();
  }

  void rethrow() const { guard_.rethrow(); }

 private:
  const GenerateOptions& options_;
  Collector& collector_;
  const PassWatch watch_;
  bool is_cancelled_ = false;
  CallGuard guard_;
};

// Removes the padding of heads and undoes their order, so that taps have the model's own channels.
void drop_padding(const ModelConfig& config, TapTensor& tap) {
  const bool rotates = tap.name.ends_with(".q") || tap.name.ends_with(".k");
  const bool is_of_heads = rotates || tap.name.ends_with(".v") || tap.name.ends_with(".attn_out");
  const Attention& attention = config.attention();
  const HeadPadding padding = rotates ? attention.rotated_padding() : attention.padding();
  if (!is_of_heads || !padding.present()) return;
  tap.data = unpad_heads(padding, tap.data);
  tap.shape.back() = padding.head_dim;
}

}  // namespace

class LLM::Impl {
 public:
  Impl(const EngineOptions& options, const std::function<void(const LoadProgress&)>& on_progress)
      : engine(options, on_progress),
        chat(load_chat_template(engine.tokenizer().config(), options.chat_template)) {}

  // Token ids pass unchanged; text is encoded with the tokenizer's special tokens.
  std::vector<int32_t> to_ids(const Prompt& prompt) const {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
    return engine.tokenizer().encode(std::get<std::string>(prompt));
  }

  void add_all(const std::vector<Prompt>& prompts, const std::vector<SamplingParams>& params,
               OutputKind kind, Collector& collector);
  // Adds requests to a call by `add(collector)` and runs them; without `on_output` one output each
  // is enough.
  template <typename Add>
  std::vector<RequestOutput> call(size_t num_requests, const GenerateOptions& options, Add add);
  void run(Collector& collector, PassCallbacks& callbacks);

  LlmEngine engine;
  const ChatTemplate chat;
  // By request id: outputs of add_request's requests that arrived while `generate` ran, or in a
  // `step` that ended with an exception. The next `step` returns them.
  std::map<int64_t, RequestOutput> kept;
};

// Queues all prompts of a call. An error of one of several names its index; the caller then drops
// the requests queued so far.
void LLM::Impl::add_all(const std::vector<Prompt>& prompts,
                        const std::vector<SamplingParams>& params, OutputKind kind,
                        Collector& collector) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    SamplingParams own = params[i];
    own.output_kind = kind;
    std::vector<int32_t> ids = to_ids(prompts[i]);
    const size_t num_prompt_tokens = ids.size();
    try {
      collector.add(engine.add_request(std::move(ids), own), i, num_prompt_tokens);
    } catch (const Error& error) {
      throw prompts.size() == 1 ? error : error.in(fmt::format("prompt {}", i));
    }
  }
}

// Steps the engine until all requests of the call have ended. Requests of add_request run along.
void LLM::Impl::run(Collector& collector, PassCallbacks& callbacks) {
  while (!collector.done()) {
    const bool is_cancelled = callbacks.should_cancel();
    callbacks.rethrow();
    if (is_cancelled) {
      for (const auto& [id, index] : collector.index_of()) engine.cancel_request(SequenceId(id));
    }
    std::vector<RequestOutput> outputs = engine.step(callbacks.watch());
    // Outputs of other requests are stored before any callback, which may throw.
    const auto own = std::stable_partition(
        outputs.begin(), outputs.end(),
        [&](const RequestOutput& output) { return !collector.has(output.request_id); });
    for (auto it = outputs.begin(); it != own; ++it) kept[it->request_id].append(std::move(*it));
    for (auto it = own; it != outputs.end(); ++it) collector.take(std::move(*it));
    callbacks.rethrow();
    collector.report();
  }
}

template <typename Add>
std::vector<RequestOutput> LLM::Impl::call(size_t num_requests, const GenerateOptions& options,
                                           Add add) {
  Collector collector(num_requests, options, engine);
  PassCallbacks callbacks(options, collector, engine.plan().passes.min_watched_rows);
  try {
    add(collector);
    run(collector, callbacks);
  } catch (...) {
    // Requests of a failed call must not appear in a later step.
    for (const auto& [id, index] : collector.index_of()) engine.drop_request(SequenceId(id));
    throw;
  }
  return collector.outputs();
}

LLM::LLM(const EngineOptions& options, std::function<void(const LoadProgress&)> on_progress)
    : impl_(std::make_unique<Impl>(options, on_progress)) {}
LLM::~LLM() = default;
LLM::LLM(LLM&&) noexcept = default;
LLM& LLM::operator=(LLM&&) noexcept = default;

std::vector<RequestOutput> LLM::generate(const std::vector<Prompt>& prompts,
                                         const SamplingParams& params,
                                         const GenerateOptions& options) {
  return generate(prompts, std::vector<SamplingParams>(prompts.size(), params), options);
}

std::vector<RequestOutput> LLM::generate(const std::vector<Prompt>& prompts,
                                         const std::vector<SamplingParams>& params,
                                         const GenerateOptions& options) {
  if (params.size() != prompts.size()) {
    fail(ErrorCode::kInvalidArgument, "{} prompts with {} sampling parameters; give one for each",
         prompts.size(), params.size());
  }
  // Without a callback one output per request is enough.
  const OutputKind kind = options.on_output ? OutputKind::kDelta : OutputKind::kFinalOnly;
  return impl_->call(prompts.size(), options, [&](Collector& collector) {
    impl_->add_all(prompts, params, kind, collector);
  });
}

PinInfo LLM::pin(const std::string& name, const Prompt& prompt, const GenerateOptions& options,
                 const std::string& cache_salt) {
  SamplingParams params;
  params.temperature = 0;
  params.cache_salt = cache_salt;
  params.output_kind = OutputKind::kFinalOnly;
  GenerateOptions own = options;
  own.on_output = nullptr;  // the token means nothing
  const auto outputs = impl_->call(1, own, [&](Collector& collector) {
    std::vector<int32_t> ids = impl_->to_ids(prompt);
    const size_t num_tokens = ids.size();
    impl_->engine.kv().pins().check_room(name, std::ssize(ids));
    collector.add(impl_->engine.add_pin(name, std::move(ids), params), 0, num_tokens);
  });
  PinInfo none;
  none.name = name;
  if (outputs[0].finish_reason == FinishReason::kCancelled) return none;
  for (PinInfo& info : pins()) {
    if (info.name == name) return info;
  }
  return none;
}

std::vector<PinInfo> LLM::pins() const { return impl_->engine.kv().pins().list(); }

bool LLM::unpin(const std::string& name) { return impl_->engine.kv().pins().release(name); }

std::vector<int32_t> LLM::chat_prompt(const std::vector<ChatMessage>& messages,
                                      const ChatOptions& options) const {
  const std::tm now = local_time();
  return impl_->engine.tokenizer().encode(impl_->chat.render(messages, options, &now),
                                          /*add_special_tokens=*/false);
}

std::vector<int32_t> LLM::chat_prompt_json(std::string_view messages,
                                           const ChatOptions& options) const {
  const std::tm now = local_time();
  return impl_->engine.tokenizer().encode(impl_->chat.render_json(messages, options, &now),
                                          /*add_special_tokens=*/false);
}

// chat_prompt reports the reason.
bool LLM::can_chat() const { return impl_->chat.problem().empty(); }

const std::vector<std::string>& LLM::chat_variables() const { return impl_->chat.kwargs(); }

std::vector<TokenScore> LLM::score(const std::vector<int32_t>& token_ids) {
  return score(token_ids, {});
}

std::vector<TokenScore> LLM::score(const std::vector<int32_t>& token_ids,
                                   const ScoreOptions& options) {
  if (token_ids.size() < 2) {
    fail(ErrorCode::kInvalidArgument,
         "a text of {} tokens has none with another before it; give at least two",
         token_ids.size());
  }
  const int64_t decode_after = options.decode_after;
  if (decode_after < 0 || decode_after >= std::ssize(token_ids)) {
    fail(ErrorCode::kInvalidArgument,
         "decode_after is {}, but the text has {} tokens; give less, or 0 to score it by prefill",
         decode_after, token_ids.size());
  }
  // False ends the scoring with the scores so far.
  const auto on_scored = [&](int64_t num_scored) {
    if (options.on_progress) options.on_progress(num_scored);
    return !options.should_cancel || !options.should_cancel();
  };
  return decode_after == 0 ? impl_->engine.solo().score(token_ids, on_scored)
                           : score_decoded(impl_->engine, token_ids, decode_after, on_scored);
}

int64_t LLM::add_request(const Prompt& prompt, const SamplingParams& params, CancelFlag cancel) {
  return impl_->engine.add_request(impl_->to_ids(prompt), params, std::move(cancel)).value;
}

void LLM::cancel_request(int64_t request_id) {
  impl_->engine.cancel_request(SequenceId(request_id));
}

bool LLM::has_unfinished() const { return !impl_->kept.empty() || impl_->engine.has_unfinished(); }

std::vector<RequestOutput> LLM::step(const StepOptions& options) {
  std::vector<RequestOutput> outputs;
  if (!impl_->kept.empty()) {
    // Outputs kept by an earlier call come first; the engine steps again in the next call.
    for (auto& [id, output] : std::exchange(impl_->kept, {})) outputs.push_back(std::move(output));
    return outputs;
  }
  if (!options.on_progress) return impl_->engine.step();
  CallGuard guard;
  const PassWatch watch{
      .on_prompt = [&](const PromptProgress& p) { guard.run([&] { options.on_progress(p); }); },
      .should_cancel = [&] { return guard.has_failed(); },
      .min_rows = impl_->engine.plan().passes.min_watched_rows};
  outputs = impl_->engine.step(&watch);
  if (guard.has_failed()) {
    for (RequestOutput& output : outputs) {
      impl_->kept[output.request_id].append(std::move(output));
    }
  }
  guard.rethrow();
  return outputs;
}

SamplingParams LLM::default_sampling_params() const { return impl_->engine.config().sampling; }

std::vector<std::string> LLM::notes() const { return impl_->engine.reports().notes(); }

std::vector<std::string> LLM::warnings() const { return impl_->engine.reports().warnings(); }

std::vector<int32_t> LLM::encode(std::string_view text, const EncodeOptions& options) const {
  return impl_->engine.tokenizer().encode_prompt(text, options);
}

std::string LLM::decode(const std::vector<int32_t>& token_ids) const {
  return impl_->engine.tokenizer().decode(token_ids, /*skip_special=*/false);
}

int64_t LLM::max_model_len() const { return impl_->engine.plan().max_model_len; }

std::string LLM::kv_offload() const { return kv_offload_name(impl_->engine.plan().kv_offload); }

EngineStats LLM::stats() const { return impl_->engine.stats(); }

Observations LLM::observations() const { return impl_->engine.observations(); }

bool LLM::flush_kv_store() { return impl_->engine.flush_store(); }

void LLM::write_timeline() { impl_->engine.reports().write_timeline(); }

LLM::Trace LLM::trace(const std::vector<int32_t>& token_ids,
                      const std::vector<std::string>& tap_patterns,
                      const GenerateOptions& options) {
  TraceRecorder recorder(tap_patterns, impl_->engine.device());
  recorder.check_patterns(impl_->engine.config().layers);
  const auto num_tokens = static_cast<int64_t>(token_ids.size());
  PassWatch watch;
  watch.should_cancel = options.should_cancel;
  if (options.on_progress) {
    watch.on_progress = [&](int64_t rows) {
      options.on_progress({.num_requests = 1,
                           .num_prompt_tokens_total = num_tokens,
                           .num_prompt_tokens_done = rows});
    };
  }
  Trace trace;
  trace.logits.name = "logits";
  trace.logits.data = impl_->engine.solo().trace(token_ids, recorder, watch);
  if (trace.logits.data.empty()) return trace;  // cancelled
  trace.logits.shape = {num_tokens, impl_->engine.config().vocab_size};
  trace.taps = recorder.take();
  const ModelConfig& config = impl_->engine.config();
  for (TapTensor& tap : trace.taps) drop_padding(config, tap);
  return trace;
}

}  // namespace sluice
