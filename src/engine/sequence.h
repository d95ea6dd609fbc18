// Sequence: everything the engine knows about one request while it runs.
//
// Made by LlmEngine from a request, moved between queues by the scheduler, read by the runner.
// All state of a sequence lives here and ids are never reused, so nothing can leak from one request
// to the next. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "kv/sequence_kv.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"
#include "tokenizer/detokenizer.h"

namespace sluice {

struct Sequence {
  Sequence(SequenceId id_in, std::vector<int32_t> prompt, const SamplingParams& params_in,
           int64_t seed_in, Detokenizer detokenizer_in)
      : id(id_in),
        params(params_in),
        seed(seed_in),
        tokens(std::move(prompt)),
        num_prompt_tokens(static_cast<int64_t>(tokens.size())),
        detokenizer(std::move(detokenizer_in)) {
    output.request_id = id.value;
  }

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_generated() const { return num_tokens() - num_prompt_tokens; }

  std::vector<int32_t> prompt() const {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(num_prompt_tokens)};
  }

  // Tokens whose KV has to be computed before the next one can be sampled.
  int64_t num_pending() const { return num_tokens() - kv.num_tokens(); }

  // Moves decoded text before `end` that the caller has not seen into the output.
  void show_text(size_t end) {
    SLUICE_CHECK(end >= num_shown_bytes, "{} bytes of text, {} were shown", end, num_shown_bytes);
    output.text.append(text, num_shown_bytes, end - num_shown_bytes);
    num_shown_bytes = end;
  }

  // What came since the last call, for the caller; the prompt with the last one.
  RequestOutput take_output() {
    if (output.finished()) output.prompt_token_ids = prompt();
    RequestOutput next;
    next.request_id = output.request_id;
    next.num_cached_tokens = output.num_cached_tokens;
    return std::exchange(output, std::move(next));
  }

  SequenceId id;
  SamplingParams params;
  int64_t seed = 0;             // params.seed, or one drawn for the request
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int64_t num_prompt_tokens = 0;
  SequenceKv kv;

  Detokenizer detokenizer;
  std::string text;            // everything decoded
  size_t num_shown_bytes = 0;  // of it; what may begin a stop string is held back
  RequestOutput output;        // what the caller has not taken yet
};

}  // namespace sluice
