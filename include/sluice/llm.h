// LLM: the public interface of the engine. The command line uses the same interface.
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

#include "sluice/cancel_flag.h"
#include "sluice/chat.h"
#include "sluice/encode_options.h"
#include "sluice/engine_options.h"
#include "sluice/error.h"
#include "sluice/observations.h"
#include "sluice/pin_info.h"
#include "sluice/progress.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"
#include "sluice/tap_tensor.h"

namespace sluice {

// A text or token ids. A text is tokenized, with the model's BOS if it has one; special tokens
// written in it are plain text (LLM::encode with parse_special turns them into ids).
using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct GenerateOptions {
  // Called after each step for each request that got a token, got log-probabilities of its prompt
  // or finished, with the new part of its output; `index` is that of its prompt.
  // RequestOutput::append of all of them gives the output that generate returns at this index.
  std::function<void(size_t index, const RequestOutput& output)> on_output;
  std::function<void(const Progress& progress)> on_progress;
  // Called between steps, and many times a second within a long prefill pass. True ends all
  // requests of the call with kCancelled and keeps their text.
  std::function<bool()> should_cancel;
};

struct StepOptions {
  // Called within a long prefill pass, between its layers, for each prompt that it computes. What
  // it throws ends the pass and leaves `step`; all requests then go on with the next `step`.
  std::function<void(const PromptProgress& progress)> on_progress;
};

class LLM {
 public:
  // Loads the model and takes all memory. An exception from `on_progress` ends loading.
  // Errors: kModel (files of the model that cannot be read included), kUnsupported (a file given as
  // chat_template included; that of a model only fails chat_prompt), kDoesNotFit
  // (before weights are read), kInvalidArgument; kIo for a timeline that cannot be written.
  explicit LLM(const EngineOptions& options,
               std::function<void(const LoadProgress&)> on_progress = nullptr);
  ~LLM();
  LLM(LLM&&) noexcept;
  LLM& operator=(LLM&&) noexcept;

  // Runs all prompts to their end and returns one whole output per prompt, in order. Requests of
  // add_request run in the same steps; the next `step` returns their outputs.
  // Errors: before any work, with the index of the prompt in the context: kInvalidArgument,
  // kDoesNotFit for a prompt that can never fit. kDevice ends the call and leaves the engine
  // unusable. An exception from a callback ends the call and its requests, and no others.
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const SamplingParams& params,
                                      const GenerateOptions& options = {});
  // As above, with one `params` for each prompt. Errors: kInvalidArgument if the sizes differ.
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const std::vector<SamplingParams>& params,
                                      const GenerateOptions& options = {});

  // Computes a prompt, or finds it, and keeps its KV under a name until `unpin`, in memory, or in
  // the KV store if memory has no room beside one longest request. Every prompt that begins with it
  // and has the same cache_salt finds it; there is nothing to restore. Replaces a pin of this name.
  // Of `options` on_progress and should_cancel are called; a cancelled call pins nothing and
  // returns no tokens.
  // Errors: as generate; kInvalidArgument for a name that is_pin_name refuses; kDoesNotFit for a
  // prompt without room for it, if there is no KV store.
  PinInfo pin(const std::string& name, const Prompt& prompt, const GenerateOptions& options = {},
              const std::string& cache_salt = {});
  // All pins, by name.
  std::vector<PinInfo> pins() const;
  // False if there is no pin of this name.
  bool unpin(const std::string& name);

  // The chat template applied to `messages`, as ids that end where the answer begins. No text of a
  // message becomes a special token. Templates that print today's date get the local time.
  // Errors: kUnsupported when there is no template or it has constructs that are not supported;
  // kInvalidArgument for no messages, unknown roles, template_kwargs that the template does not
  // read, and what the template itself refuses.
  std::vector<int32_t> chat_prompt(const std::vector<ChatMessage>& messages,
                                   const ChatOptions& options = {}) const;

  // The same for a conversation as a JSON list in the form of OpenAI's API: contents of several
  // parts, tool calls, answers of tools. Errors: those of chat_prompt, naming the place in the
  // list.
  std::vector<int32_t> chat_prompt_json(std::string_view messages,
                                        const ChatOptions& options = {}) const;

  // Whether there is a chat template that chat_prompt can use.
  bool can_chat() const;
  // The variables that ChatOptions::template_kwargs may have: those that the template reads and
  // that a conversation does not set in another way. Sorted.
  const std::vector<std::string>& chat_variables() const;

  // Log-probability of each token given the tokens before it; the first token has no score. Used
  // for perplexity and for choosing between given answers. The same numbers as
  // SamplingParams::prompt_logprobs; runs prefill as `trace` does, in passes of max_num_seqs rows.
  // Errors: kInvalidArgument for fewer than two tokens, for ids outside the vocabulary, and while
  // requests of add_request are unfinished; kDoesNotFit when the text leaves no room for one token
  // more; kIo while a KV store that stands still holds the memory; kModel for logits that are not
  // finite.
  struct ScoreOptions {
    std::function<void(int64_t num_scored)> on_progress;
    std::function<bool()> should_cancel;  // true ends the call with what was scored so far
    // 0: every token is scored by prefill. Otherwise this many tokens are the prompt and have no
    // score, and each token after them is scored by a decode step, under the policy for decode.
    // REQUIRES: less than the number of tokens.
    int64_t decode_after = 0;
  };
  std::vector<TokenScore> score(const std::vector<int32_t>& token_ids, const ScoreOptions& options);
  std::vector<TokenScore> score(const std::vector<int32_t>& token_ids);

  // The engine's loop, for callers that add requests while others run:
  //
  //   while (llm.has_unfinished()) {
  //     for (RequestOutput& output : llm.step()) answers[output.request_id].append(output);
  //   }
  //
  // Errors of add_request: those of generate, before any work.
  int64_t add_request(const Prompt& prompt, const SamplingParams& params, CancelFlag cancel = {});
  // Ends a request with kCancelled; its last output comes from the next `step`.
  void cancel_request(int64_t request_id);
  // Whether there is anything left for `step` to compute or to return.
  bool has_unfinished() const;
  // Runs one prefill or decode pass. Returns at most one output per request, of the kind that its
  // output_kind asks for. A pass ends early if requests with half of its rows are cancelled by
  // their flags: at most two parts of it, a layer's attention or a tile of rows each, are computed
  // after that. What a cancelled request had computed in earlier passes stays in the prefix cache,
  // so that the same prompt goes on there. Errors: kDevice, kModel for logits that are not finite.
  std::vector<RequestOutput> step(const StepOptions& options = {});

  // The parameters that generation_config.json suggests, over SamplingParams' own defaults.
  SamplingParams default_sampling_params() const;
  // The automatic choices (sizes, devices), one line each.
  std::vector<std::string> notes() const;
  // What was ignored or may change answers, one line each: keys of the model's files that are not
  // supported, a shorter context than the model's, files that do not belong together. A program
  // should show them to its user.
  std::vector<std::string> warnings() const;

  // The ids of a text. With parse_special the model's control tokens may be written out in it; a
  // BOS at its front is then not added a second time.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  std::string decode(const std::vector<int32_t>& token_ids) const;
  int64_t max_model_len() const;
  std::string kv_offload() const;  // "off", "chunked" or "layerwise"; never "auto"
  EngineStats stats() const;
  Observations observations() const;  // bytes moved, by phase and layer

  // With a KV store: waits until all blocks are written that shall be. False if none was written
  // for ten seconds. The destructor does the same. Writing goes on beside `step` by itself.
  // Errors: as step.
  bool flush_kv_store();

  // Waits for all work and writes the spans of all streams so far to EngineOptions::timeline_path,
  // as JSON for chrome://tracing or Perfetto. Does nothing if no path was given.
  // Errors: kIo; the first error of the work it waited for.
  void write_timeline();

  // Runs `token_ids` as one request. Returns the logits (f32 [num_tokens, vocab]) of every position
  // and the taps whose names match one of `tap_patterns` ("layer.*.attn_out"). Used to compare
  // Sluice with a reference implementation.
  // Errors: kInvalidArgument for a pattern that no tap matches, and while requests of add_request
  // are unfinished; those of generate.
  // Of `options`, on_progress (with counts of prompt tokens) and should_cancel are called, between
  // passes of some hundred tokens. A cancelled trace has no logits and no taps.
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
