// Sequence: all state of one request while it runs.
//
// LlmEngine makes it from a request, the scheduler moves it between queues, the runner reads it.
// Ids are never reused and no state lives elsewhere without this id as key, so nothing can leak
// from one request to the next (invariant 6). Thread rule: the engine's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/ids.h"
#include "engine/mass_sums.h"
#include "engine/sampling/guide.h"
#include "engine/sampling/logit_entries.h"
#include "engine/sampling/mask_order.h"
#include "engine/speculation/draft_record.h"
#include "kv/sequence_kv.h"
#include "sluice/cancel_flag.h"
#include "sluice/progress.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"
#include "tokenizer/detokenizer.h"

namespace sluice {

// Of the scheduler.
struct QueueSlot {
  // Prefill passes, since the last one with rows of this prompt, that could have had some.
  int32_t num_passes_missed = 0;
  // While it waits: the running sequence that computes the beginning of this prompt, too, and the
  // number of tokens after which it has. Not valid: none does.
  SequenceId held_by;
  int64_t held_until = 0;
};

// Of the KV store and the pins.
struct StoreSlot {
  std::string pin;              // its prompt is held under this name when it ends; or empty
  bool is_loading = false;      // its blocks come from the KV store: it gets no rows yet
  bool begins_again = false;    // KV came without the states after it: its blocks are given back
  int32_t num_bad_loads = 0;    // that ended so
  size_t num_named_blocks = 0;  // sealed blocks that engine/store has looked at
};

// Of the snapshots of states, in hybrid models.
struct StateSlot {
  std::vector<int64_t> wanted;  // numbers of tokens after which others want one
  int64_t newest_decoded = 0;   // the prefix after which decoding left the newest; 0: none
};

// Of speculation.
struct DraftSlot {
  std::vector<int32_t> tokens;  // of this step: what may follow the text; empty between steps
  DraftRecord record;           // how its drafts did so far
};

// Of the observer.
struct AuditSlot {
  MassSums mass;                    // that its prefill captured; empty without sparse_audit
  int64_t num_measured_tokens = 0;  // of the prompt: rows before it have been added to `mass`
};

// Of the answers.
struct AnswerSlot {
  Detokenizer detokenizer;
  std::string text = {};       // all generated text; cut at a stop string
  size_t num_shown_bytes = 0;  // bytes of `text` in outputs; a possible stop string is held back
  RequestOutput output = {};   // not yet taken by the caller
};

// Of the grammars.
struct GrammarSlot {
  std::shared_ptr<Guide> guide;      // null: the answer is free
  std::shared_ptr<MaskOrder> masks;  // the newest; null: none yet

  // Whether the next token has to wait for the grammar, for the first masks, or for masks that were
  // late; the prompt does not. A worker has the guide while it makes masks.
  bool is_waiting() const {
    return guide != nullptr && (has_pending_masks() || guide->is_waiting());
  }
  bool has_pending_masks() const { return masks != nullptr && !masks->is_done(); }
  // Whether the pass that has drawn gives the sequence a token.
  bool gives_token() const { return masks == nullptr || masks->gives_token(); }
};

struct Sequence {
  Sequence(SequenceId id_in, std::vector<int32_t> prompt, const SamplingParams& params_in,
           int64_t seed_in, Detokenizer detokenizer_in)
      : id(id_in),
        params(params_in),
        seed(seed_in),
        tokens(std::move(prompt)),
        num_prompt_tokens(static_cast<int64_t>(tokens.size())),
        logit_entries(params, tokens),
        answer{.detokenizer = std::move(detokenizer_in)} {
    answer.output.request_id = id.value;
  }

  // Prompt and generated tokens. The KV of the newest one is not computed yet.
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_generated() const { return num_tokens() - num_prompt_tokens; }

  // The token at a position; those after the newest are drafts.
  int32_t token_at(int64_t pos) const {
    const auto index = static_cast<size_t>(pos);
    return index < tokens.size() ? tokens[index] : draft.tokens[index - tokens.size()];
  }
  // Whether what may be sampled depends on the output so far.
  bool has_penalties() const {
    return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
           params.presence_penalty != 0.0f;
  }

  // Appends a generated token.
  void append(int32_t token_id) {
    tokens.push_back(token_id);
    logit_entries.append(token_id);
    ++answer.output.stats.num_generated_tokens;
  }

  // Whether some token of the prompt has no entry in its output yet.
  bool needs_scores() const {
    return params.prompt_logprobs.has_value() && num_scored < num_prompt_tokens;
  }
  // Appends the entry of the next prompt token.
  void add_score(std::vector<TokenLogprob> entry) {
    answer.output.prompt_logprobs.push_back(std::move(entry));
    ++num_scored;
  }

  std::vector<int32_t> prompt() const {
    return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(num_prompt_tokens)};
  }

  // Tokens whose KV must be computed before the next token can be sampled; 1 in decode.
  int64_t num_pending() const { return num_tokens() - kv.num_tokens(); }

  bool is_cancelled() const { return cancel != nullptr && cancel->load(std::memory_order_relaxed); }

  // The first `num_tokens` tokens have KV, or part of it. What was computed again is not reported
  // again.
  void set_prompt_done(int64_t num_tokens) {
    answer.output.num_prompt_tokens_done =
        std::max(answer.output.num_prompt_tokens_done, std::min(num_tokens, num_prompt_tokens));
  }

  // A pass with rows of it begins.
  void count_pass(int64_t now_ns) {
    if (answer.output.stats.scheduled_ns == 0) answer.output.stats.scheduled_ns = now_ns;
  }
  // A pass that gave it tokens has ended; `append` counts them.
  void count_end(int64_t now_ns) {
    RequestStats& stats = answer.output.stats;
    if (stats.num_generated_tokens == 0) stats.first_token_ns = now_ns;
    stats.last_token_ns = now_ns;
  }

  // The sequence has got its blocks, the first of them from the cache. After a preemption these may
  // include generated tokens; only the prompt's count.
  void set_cached() {
    answer.output.num_cached_tokens = std::min(kv.num_cached_tokens(), num_prompt_tokens);
    answer.output.num_stored_tokens = 0;
  }
  // More tokens of it were read from the KV store and committed.
  void add_stored(int64_t num_stored) {
    const int64_t before = answer.output.num_cached_tokens;
    answer.output.num_cached_tokens = std::min(before + num_stored, num_prompt_tokens);
    answer.output.num_stored_tokens += answer.output.num_cached_tokens - before;
    set_prompt_done(kv.num_tokens());
  }

  PromptProgress prompt_progress() const {
    return {.request_id = id.value,
            .num_prompt_tokens = num_prompt_tokens,
            .num_cached_tokens = answer.output.num_cached_tokens,
            .num_stored_tokens = answer.output.num_stored_tokens,
            .num_done = answer.output.num_prompt_tokens_done};
  }

  // Appends the text bytes [num_shown_bytes, end) to the output.
  void show_text(size_t end) {
    SLUICE_CHECK(end >= answer.num_shown_bytes, "{} bytes of text, {} were shown", end,
                 answer.num_shown_bytes);
    answer.output.text.append(answer.text, answer.num_shown_bytes, end - answer.num_shown_bytes);
    answer.num_shown_bytes = end;
  }

  // Returns what was generated since the last call and starts a new output. Only the last output of
  // a request carries the prompt's ids and the captured mass.
  RequestOutput take_output() {
    if (answer.output.finished()) {
      answer.output.prompt_token_ids = prompt();
      answer.output.captured_mass = audit.mass.describe();
    }
    RequestOutput next;
    next.request_id = answer.output.request_id;
    next.num_cached_tokens = answer.output.num_cached_tokens;
    next.num_stored_tokens = answer.output.num_stored_tokens;
    next.num_prompt_tokens_done = answer.output.num_prompt_tokens_done;
    next.stats = answer.output.stats;
    return std::exchange(answer.output, std::move(next));
  }

  SequenceId id;
  SamplingParams params;
  CancelFlag cancel;            // set by the caller; may be null
  int64_t seed = 0;             // params.seed, or one derived from the engine's seed and the id
  std::vector<int32_t> tokens;  // the prompt, then the generated tokens
  int64_t num_prompt_tokens = 0;
  CacheSalt salt = CacheSalt::kNone;  // of params.cache_salt; Scheduler::add sets it
  SequenceKv kv;                      // its blocks, and the number of tokens whose KV is valid
  LogitEntries logit_entries;         // of the tokens so far
  int64_t num_scored = 0;             // prompt tokens with an entry in the outputs

  // What one station notes, by station.
  QueueSlot queue;
  StoreSlot stored;
  StateSlot states;
  DraftSlot draft;
  AuditSlot audit;
  AnswerSlot answer;
  GrammarSlot grammar;
};

}  // namespace sluice
