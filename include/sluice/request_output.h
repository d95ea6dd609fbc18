// RequestOutput: the answer of a request, whole or one part at a time.
//
// Returned by LLM::generate and LLM::step, with the field names of vLLM. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sluice/observations.h"

namespace sluice {

enum class FinishReason {
  kNone,       // still running
  kStop,       // an end token, a stop id or a stop string
  kLength,     // max_tokens reached
  kCancelled,  // the caller asked; the text so far is kept
  kError,      // the request could not go on; RequestOutput::error says why
};

std::string finish_reason_name(
    FinishReason reason);  // "stop", "length", "cancelled", "error"; "" while running

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;  // natural log
};

// A token of a given text, from LLM::score.
struct TokenScore {
  int32_t token_id = 0;
  float logprob = 0.0f;      // natural log, after all tokens before it
  int32_t top_token_id = 0;  // the likeliest token there
  float top_logprob = 0.0f;
};

// What the engine measured of a request until its output was made, preemptions included. Times are
// of std::chrono::steady_clock, in nanoseconds; 0: not yet.
struct RequestStats {
  int64_t num_generated_tokens = 0;
  int64_t scheduled_ns = 0;    // the first pass with rows of it began
  int64_t first_token_ns = 0;  // the pass that gave it had ended
  int64_t last_token_ns = 0;   // likewise
};

// By SamplingParams::output_kind: kDelta, the part that is new since the request's last output,
// also after a prefill pass that computed only a part of its prompt; kFinalOnly, the whole answer
// at its end.
struct RequestOutput {
  int64_t request_id = 0;  // monotonic within an engine
  // Set in the last output only, since a long prompt would otherwise be copied for every token.
  std::vector<int32_t> prompt_token_ids;
  int64_t num_cached_tokens = 0;  // prompt tokens whose KV was found by prefix caching
  int64_t num_stored_tokens = 0;  // of these, read from the KV store
  // Prompt tokens that are computed or were found so far. Never falls, and is the prompt's length
  // from the first generated token on.
  int64_t num_prompt_tokens_done = 0;
  // With sparse_audit, in the last output only: what the masks of the request's own prefill held of
  // the softmax mass, by layer. Rows before num_cached_tokens are not measured.
  std::vector<MassObservations> captured_mass;
  RequestStats stats;

  std::vector<int32_t> token_ids;  // generated, the end token included
  std::string text;  // detokenized; whole characters only, so a new token may bring no text
  // Per generated token: the chosen one first, then the requested number of most likely ones.
  // Empty unless SamplingParams::logprobs is set.
  std::vector<std::vector<TokenLogprob>> logprobs;
  // Per token of the prompt: itself first, then the requested number of most likely ones; the first
  // token has an empty entry, since none is before it. Deltas have those of their prefill pass.
  // Fewer if the request was cancelled before. Empty unless SamplingParams::prompt_logprobs is set.
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;

  SpeculationCounts speculation;  // the request's drafts
  FinishReason finish_reason = FinishReason::kNone;
  std::string stop_reason;  // the stop string that ended it, if one did
  std::string error;        // of kError

  bool finished() const { return finish_reason != FinishReason::kNone; }

  // Appends the following part of the answer. All outputs of a request, appended in order to an
  // empty one, give the whole answer. Cost: linear in `next`.
  void append(RequestOutput next);
};

// Counted by the engine, for progress lines and benchmarks. Times in nanoseconds.
// What routers were told of the prefix cache (docs/kv_events.md).
struct KvEventStats {
  int64_t num_sent = 0;     // events
  int64_t num_dropped = 0;  // replaced by "all blocks cleared" and what was there then
};

struct EngineStats {
  int64_t num_prompt_tokens = 0;  // computed in prefill (prefix hits not counted)
  int64_t num_cached_tokens = 0;  // found by prefix caching instead
  int64_t num_stored_tokens = 0;  // and read from the KV store; not in num_cached_tokens
  int64_t num_generated_tokens = 0;
  int64_t num_steps = 0;
  int64_t num_preemptions = 0;
  int64_t num_graph_launches = 0;                // decode steps that were one launch (CUDA)
  std::optional<SpeculationCounts> speculation;  // empty without a speculative method
  // With KV offload, as in Observations, all layers and phases.
  int64_t kv_h2d_bytes = 0;
  int64_t kv_d2h_bytes = 0;
  int64_t num_slot_waits = 0;
  int64_t num_hot_page_hits = 0;  // of pages that decode listed (docs/offload.md)
  int64_t num_hot_page_misses = 0;
  // With a KV store; bytes are those of files.
  int64_t store_read_bytes = 0;
  int64_t store_written_bytes = 0;
  int64_t num_store_blocks_written = 0;
  int64_t num_store_blocks_skipped = 0;  // evicted from memory before they could be written
  int64_t num_store_bad_files = 0;
  int64_t num_store_write_errors = 0;      // blocks that a fault of the disk or directory kept out
  double store_read_bytes_per_second = 0;  // of the last reads; 0: unknown
  std::optional<KvEventStats> kv_events;   // empty without an endpoint
  // Of all steps; empty before the first, and without experts in host memory.
  std::optional<ExpertObservations> experts;
  int64_t prefill_ns = 0;  // host wall time of prefill steps
  int64_t decode_ns = 0;   // and of decode steps
  int64_t draft_ns = 0;    // of these, in passes that draft for speculation
  int64_t load_ns = 0;     // loading the model
};

}  // namespace sluice
