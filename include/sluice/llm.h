// LLM: the engine as its users see it. What the command line uses is what you get.
//
//   sluice::LLM llm({.model = "models/needle"});
//   auto outputs = llm.generate({"The capital of France is"}, {.temperature = 0, .max_tokens =
//   32});
//
// Thread rule: one thread calls an LLM object; `cancel` flags may be set from others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/engine_options.h"
#include "sluice/error.h"
#include "sluice/observations.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"

namespace sluice {

// Text (tokenized, with the model's BOS if it has one; special tokens in it are plain text) or ids.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ChatOptions {
  bool enable_thinking = true;  // Qwen3; others ignore it
  std::string date;  // "26 Jul 2024", for templates that print one (Llama 3.1); "": their own
};

// How far loading is; passed to the callback of LLM's constructor.
struct LoadProgress {
  enum class Stage { kPinning, kWeights };  // in this order; pinning when KV is offloaded
  Stage stage = Stage::kWeights;
  double share = 0;        // of the stage, 0 to 1
  size_t total_bytes = 0;  // kPinning: of the host tier
};

// How far a batch is; passed to GenerateOptions::on_progress after every step.
struct Progress {
  int64_t num_requests = 0;
  int64_t num_finished = 0;
  int64_t num_prompt_tokens_total = 0;  // of all requests
  int64_t num_prompt_tokens_done = 0;
  int64_t num_generated_tokens = 0;
};

struct GenerateOptions {
  // Called with each request that got new text or finished; `index` is its place in the call.
  std::function<void(size_t index, const RequestOutput& output)> on_output;
  std::function<void(const Progress& progress)> on_progress;
  // Asked between steps; true ends all requests with kCancelled and keeps their text.
  std::function<bool()> should_cancel;
};

// Captured tensors, for alignment with a reference implementation. `data` is f32, row-major.
struct TapTensor {
  std::string name;  // "layer.3.attn_out", see docs/architecture.md for all names
  std::vector<int64_t> shape;
  std::vector<float> data;
};

class LLM {
 public:
  // Loads the model and takes all memory. What `on_progress` throws ends it.
  // Errors: kModel, kIo, kDoesNotFit (before weights are read), kInvalidArgument, kUnsupported.
  explicit LLM(const EngineOptions& options,
               std::function<void(const LoadProgress&)> on_progress = nullptr);
  ~LLM();
  LLM(LLM&&) noexcept;
  LLM& operator=(LLM&&) noexcept;

  // Runs all prompts to their end and returns one output per prompt, in order.
  // Errors: before any work and with the prompt's place in the context: kInvalidArgument,
  // kDoesNotFit for a prompt that can never fit. kDevice ends the call and leaves the engine
  // unusable.
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const SamplingParams& params,
                                      const GenerateOptions& options = {});
  // The same with parameters of its own for each prompt.
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const std::vector<SamplingParams>& params,
                                      const GenerateOptions& options = {});

  // The model's own chat template applied to `messages`, as ids that end where the answer begins.
  // Errors: kUnsupported when the model has no template that Sluice knows.
  std::vector<int32_t> chat_prompt(const std::vector<ChatMessage>& messages,
                                   const ChatOptions& options = {}) const;

  // The engine's own loop, for callers that add requests while others run.
  int64_t add_request(const Prompt& prompt, const SamplingParams& params);
  void cancel_request(int64_t request_id);
  bool has_unfinished() const;
  std::vector<RequestOutput> step();  // outputs of requests that changed in this step

  // The parameters that generation_config.json suggests, over SamplingParams' own defaults.
  SamplingParams default_sampling_params() const;
  // What was applied and chosen, one line each: defaults from files, sizes, devices.
  std::vector<std::string> notes() const;

  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<int32_t>& token_ids) const;
  int64_t max_model_len() const;
  std::string kv_offload() const;  // "off", "chunked" or "layerwise": what "auto" became
  EngineStats stats() const;
  Observations observations() const;  // what was moved, by phase and layer

  // Waits for all work and writes what the streams ran so far to EngineOptions::timeline_path, as
  // JSON for chrome://tracing or Perfetto. Does nothing when no path was given.
  // Errors: kIo; the first error of work that was pending.
  void write_timeline();

  // Logits (f32 [num_tokens, vocab]) of every position of `token_ids` in one request, and the taps
  // whose names match one of `tap_patterns` ("layer.*.attn_out"): the alignment tool's entry.
  // Errors: kInvalidArgument for a pattern that no tap matches, and where positions are in the
  // prefix cache; those of generate.
  struct Trace {
    TapTensor logits;
    std::vector<TapTensor> taps;
  };
  Trace trace(const std::vector<int32_t>& token_ids, const std::vector<std::string>& tap_patterns);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
