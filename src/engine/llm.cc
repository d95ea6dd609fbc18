// The public face: prompts to ids, requests to the engine, outputs back in order.
#include "sluice/llm.h"

#include <map>
#include <utility>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "tokenizer/chat_template.h"

namespace sluice {

std::string finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

class LLM::Impl {
 public:
  Impl(const EngineOptions& options, const std::function<void(const LoadProgress&)>& on_progress)
      : engine(options, on_progress) {}

  std::vector<int32_t> to_ids(const Prompt& prompt) const {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
    return engine.tokenizer().encode(std::get<std::string>(prompt));
  }

  LlmEngine engine;
};

namespace {

// Follows the requests of one `generate` call.
class Collector {
 public:
  explicit Collector(size_t num_requests) : outputs_(num_requests) {
    progress_.num_requests = static_cast<int64_t>(num_requests);
  }

  void add(SequenceId id, size_t index, size_t num_prompt_tokens) {
    index_of_[id.value] = index;
    progress_.num_prompt_tokens_total += static_cast<int64_t>(num_prompt_tokens);
  }

  void take(RequestOutput output, const GenerateOptions& options) {
    const auto it = index_of_.find(output.request_id);
    if (it == index_of_.end()) return;  // added by the caller through add_request
    progress_.num_finished += output.finished() ? 1 : 0;
    outputs_[it->second] = std::move(output);
    if (options.on_output) options.on_output(it->second, outputs_[it->second]);
  }

  void report(const EngineStats& before, const EngineStats& now, const GenerateOptions& options) {
    if (!options.on_progress) return;
    progress_.num_prompt_tokens_done = now.num_prompt_tokens - before.num_prompt_tokens +
                                       now.num_cached_tokens - before.num_cached_tokens;
    progress_.num_generated_tokens = now.num_generated_tokens - before.num_generated_tokens;
    options.on_progress(progress_);
  }

  bool done() const { return progress_.num_finished == progress_.num_requests; }
  const std::map<int64_t, size_t>& index_of() const { return index_of_; }
  std::vector<RequestOutput> outputs() { return std::move(outputs_); }

 private:
  std::vector<RequestOutput> outputs_;
  std::map<int64_t, size_t> index_of_;
  Progress progress_;
};

}  // namespace

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
  LlmEngine& engine = impl_->engine;
  const EngineStats before = engine.stats();
  Collector collector(prompts.size());
  try {
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t> ids = impl_->to_ids(prompts[i]);
      const size_t num_prompt_tokens = ids.size();
      try {
        collector.add(engine.add_request(std::move(ids), params[i]), i, num_prompt_tokens);
      } catch (const Error& error) {
        throw prompts.size() == 1 ? error : error.in(fmt::format("prompt {}", i));
      }
    }
  } catch (...) {
    // Nothing ran yet: take back what was queued, so that the engine is as before the call.
    for (const auto& [id, index] : collector.index_of()) cancel_request(id);
    if (has_unfinished()) engine.step();
    throw;
  }
  using Report = LlmEngine::Report;
  const Report report = options.on_output ? Report::kChanged : Report::kFinished;
  while (!collector.done()) {
    if (options.should_cancel && options.should_cancel()) {
      for (const auto& [id, index] : collector.index_of()) engine.cancel_request(SequenceId(id));
    }
    for (RequestOutput& output : engine.step(report)) collector.take(std::move(output), options);
    collector.report(before, engine.stats(), options);
  }
  return collector.outputs();
}

std::vector<int32_t> LLM::chat_prompt(const std::vector<ChatMessage>& messages,
                                      const ChatOptions& options) const {
  const Tokenizer& tokenizer = impl_->engine.tokenizer();
  const ChatTemplate chat(tokenizer.chat_template(), tokenizer.bos_token());
  return tokenizer.encode(chat.render(messages, options), /*add_special_tokens=*/false);
}

int64_t LLM::add_request(const Prompt& prompt, const SamplingParams& params) {
  return impl_->engine.add_request(impl_->to_ids(prompt), params).value;
}

void LLM::cancel_request(int64_t request_id) {
  impl_->engine.cancel_request(SequenceId(request_id));
}

bool LLM::has_unfinished() const { return impl_->engine.has_unfinished(); }
std::vector<RequestOutput> LLM::step() { return impl_->engine.step(); }

SamplingParams LLM::default_sampling_params() const {
  const GenerationDefaults& defaults = impl_->engine.config().generation;
  SamplingParams params;
  if (defaults.temperature) params.temperature = static_cast<float>(*defaults.temperature);
  if (defaults.do_sample && !*defaults.do_sample) params.temperature = 0;
  if (defaults.top_k) params.top_k = static_cast<int32_t>(*defaults.top_k);
  if (defaults.top_p) params.top_p = static_cast<float>(*defaults.top_p);
  if (defaults.min_p) params.min_p = static_cast<float>(*defaults.min_p);
  return params;
}

std::vector<std::string> LLM::notes() const { return impl_->engine.notes(); }

std::vector<int32_t> LLM::encode(std::string_view text) const {
  return impl_->engine.tokenizer().encode(text);
}

std::string LLM::decode(const std::vector<int32_t>& token_ids) const {
  return impl_->engine.tokenizer().decode(token_ids, /*skip_special=*/false);
}

int64_t LLM::max_model_len() const { return impl_->engine.plan().max_model_len; }

std::string LLM::kv_offload() const { return kv_offload_name(impl_->engine.plan().kv_offload); }

EngineStats LLM::stats() const { return impl_->engine.stats(); }

Observations LLM::observations() const { return impl_->engine.observations(); }

void LLM::write_timeline() { impl_->engine.write_timeline(); }

LLM::Trace LLM::trace(const std::vector<int32_t>& token_ids,
                      const std::vector<std::string>& tap_patterns) {
  TraceRecorder recorder(tap_patterns, impl_->engine.device());
  recorder.check_patterns(impl_->engine.config().num_layers);
  Trace trace;
  trace.logits.name = "logits";
  trace.logits.shape = {static_cast<int64_t>(token_ids.size()), impl_->engine.config().vocab_size};
  trace.logits.data = impl_->engine.trace(token_ids, recorder);
  trace.taps = recorder.take();
  return trace;
}

}  // namespace sluice
