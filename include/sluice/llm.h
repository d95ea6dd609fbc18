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

#include "sluice/chat.h"
#include "sluice/encode_options.h"
#include "sluice/engine_options.h"
#include "sluice/error.h"
#include "sluice/observations.h"
#include "sluice/progress.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"
#include "sluice/tap_tensor.h"

namespace sluice {

// Text (tokenized, with the model's BOS if it has one; special tokens in it are plain text, see
// LLM::encode for the other way) or ids.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct GenerateOptions {
  // Called with what is new of each request that got a token or finished; `index` is its place in
  // the call. Appended to each other, the outputs of a place are what generate returns there.
  std::function<void(size_t index, const RequestOutput& output)> on_output;
  std::function<void(const Progress& progress)> on_progress;
  // Asked between steps, and many times a second within a long prefill pass; true ends all requests
  // with kCancelled and keeps their text.
  std::function<bool()> should_cancel;
};

class LLM {
 public:
  // Loads the model and takes all memory. What `on_progress` throws ends it.
  // Errors: kModel (files of the model that cannot be read included), kUnsupported, kDoesNotFit
  // (before weights are read), kInvalidArgument; kIo for a timeline that cannot be written.
  explicit LLM(const EngineOptions& options,
               std::function<void(const LoadProgress&)> on_progress = nullptr);
  ~LLM();
  LLM(LLM&&) noexcept;
  LLM& operator=(LLM&&) noexcept;

  // Runs all prompts to their end and returns one whole output per prompt, in order. Requests made
  // by add_request run along; the next `step` returns what they got meanwhile.
  // Errors: before any work and with the prompt's place in the context: kInvalidArgument,
  // kDoesNotFit for a prompt that can never fit. kDevice ends the call and leaves the engine
  // unusable. What a callback throws ends the call and its requests, and no others.
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

  // Whether chat_prompt works for this model.
  bool can_chat() const;

  // Log-probability of each token of a text after those before it, without the first one, which has
  // none before it: what perplexity and choices between given answers are made of. Runs prefill as
  // `trace` does, in passes of max_num_seqs rows whose logits are kept one pass at a time.
  // Errors: kInvalidArgument for fewer than two tokens, for ids outside the vocabulary and where
  // positions are in the prefix cache; kDoesNotFit when the text leaves no room for one token more;
  // kModel for logits that are not finite. REQUIRES: no unfinished requests.
  struct ScoreOptions {
    std::function<void(int64_t num_scored)> on_progress;
    std::function<bool()> should_cancel;  // true ends the call with what was scored so far
    // 0: all by prefill. More: this many tokens are read as a prompt and have no score; each token
    // after them is scored by a decode step, as the policy for decode sees it. Less than the text.
    int64_t decode_after = 0;
  };
  std::vector<TokenScore> score(const std::vector<int32_t>& token_ids, const ScoreOptions& options);
  std::vector<TokenScore> score(const std::vector<int32_t>& token_ids);

  // The engine's own loop, for callers that add requests while others run:
  //
  //   while (llm.has_unfinished()) {
  //     for (RequestOutput& output : llm.step()) answers[output.request_id].append(output);
  //   }
  //
  // Errors of add_request: those of generate, before any work.
  int64_t add_request(const Prompt& prompt, const SamplingParams& params);
  // Ends a request with kCancelled; its last output comes from the next `step`.
  void cancel_request(int64_t request_id);
  // Whether there is anything left for `step` to compute or to return.
  bool has_unfinished() const;
  // At most one output of each request, as its output_kind says; none where a step computed a part
  // of a prompt. Errors: kDevice, kModel for logits that are not finite.
  std::vector<RequestOutput> step();

  // The parameters that generation_config.json suggests, over SamplingParams' own defaults.
  SamplingParams default_sampling_params() const;
  // What was chosen, one line each: sizes, devices.
  std::vector<std::string> notes() const;
  // What may change answers or was ignored, one line each: keys of the model's files that are not
  // supported, a shorter context than the model's, files that do not belong together. To be shown.
  std::vector<std::string> warnings() const;

  // The ids of a prompt. With parse_special a text may hold the model's control tokens, written
  // out; a BOS at its front is not added again.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
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
  // Of `options`, on_progress hears of prompt tokens and should_cancel is asked, between passes of
  // some hundred tokens; a trace that is cancelled has no logits and no taps.
  struct Trace {
    TapTensor logits;
    std::vector<TapTensor> taps;
  };
  Trace trace(const std::vector<int32_t>& token_ids, const std::vector<std::string>& tap_patterns,
              const GenerateOptions& options = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
