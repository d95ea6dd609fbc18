// LlmEngine: the loop. schedule, run, commit.
//
// Behind the public LLM (engine/llm.cc). Owns every part of the engine and the order in which they
// are made and destroyed. Thread rule: one thread calls it, but for the members that say
// otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/residency.h"
#include "engine/observer.h"
#include "engine/pins.h"
#include "engine/plan/engine_plan.h"
#include "engine/runner.h"
#include "engine/schedule/scheduler.h"
#include "engine/speculation/speculator.h"
#include "engine/store/kv_store.h"
#include "engine/timeline.h"
#include "engine/timeline_ring.h"
#include "engine/trace.h"
#include "kv/block_manager.h"
#include "model/decoder.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "model/weights_hasher.h"
#include "sluice/engine_options.h"
#include "sluice/observations.h"
#include "sluice/progress.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

class LlmEngine {
 public:
  using OnProgress = std::function<void(const LoadProgress&)>;

  // Loads the model and takes all memory. Errors: those of LLM's constructor.
  LlmEngine(const EngineOptions& options, const OnProgress& on_progress);

  // As above with parts of the caller's: a measurement has policies of its own, a test a device.
  struct Parts {
    // What the device records to, if anything: at most one of the two.
    std::unique_ptr<Timeline> timeline = nullptr;
    std::unique_ptr<TimelineRing> timeline_ring = nullptr;
    std::unique_ptr<Device> device;
    std::unique_ptr<PolicyPair> policies = nullptr;  // null: the options' ones
    // Not null: changes the plan before anything is made from it.
    std::function<void(EnginePlan& plan)> adjust_plan = nullptr;
    // The clock that times steps, in nanoseconds; null: the system's steady clock. The length of a
    // prefill pass may follow from it (max_stall_ms), and no result does.
    std::function<int64_t()> now_ns = nullptr;
    // With a speculative method: drafts in place of the n-gram search, for tests and benchmarks;
    // null: the options' ones. And the verdicts of a benchmark; null: the verifying pass's.
    std::unique_ptr<DraftSource> draft_source = nullptr;
    ForcedAcceptance forced_acceptance = nullptr;
    // The files of the KV store; null: the system's. A test has disks that fail.
    StoreFiles* store_files = nullptr;
  };
  LlmEngine(const EngineOptions& options, Parts parts, const OnProgress& on_progress = nullptr);

  ~LlmEngine();

  // Queues a request. Errors: kInvalidArgument for bad parameters, an empty prompt, ids outside the
  // vocabulary; kDoesNotFit when prompt + max_tokens can never fit. Nothing is queued then.
  SequenceId add_request(std::vector<int32_t> prompt, const SamplingParams& params,
                         CancelFlag cancel = {});
  // A request that computes or finds a prompt and, when it ends by itself, holds the prompt's KV
  // under `name`, in place of an older pin of this name. Generates one token, which means nothing.
  // What pins made since check_pin have taken is not held. Errors: as add_request. REQUIRES:
  // check_pin let it through.
  SequenceId add_pin(const std::string& name, std::vector<int32_t> prompt,
                     const SamplingParams& params, CancelFlag cancel = {});

  // The errors of add_request, which calls it. Any thread may call it while another steps the
  // engine: it reads only what the constructor made.
  void check_request(const std::vector<int32_t>& prompt, const SamplingParams& params) const;
  // As above, for add_pin: kInvalidArgument for a bad name, kDoesNotFit if pins have no room.
  void check_pin(const std::string& name, int64_t num_prompt_tokens) const {
    pins_->check_room(name, num_prompt_tokens);
  }

  // Ends a request at once with kCancelled; its output comes from the next `step`. No effect on
  // a request that has ended.
  void cancel_request(SequenceId id);
  // The same, without an output.
  void drop_request(SequenceId id);

  // schedule, run, commit; at most one output of each request, as its output_kind says. `watch`
  // sees long prefill passes (min_rows, step_watch.h) from inside; one that it cancels changes no
  // request: the next step computes its rows again, or the caller cancels the requests. Requests
  // whose flag is set end before the pass, within it, or after it.
  // REQUIRES: has_unfinished() or is_storing().
  std::vector<RequestOutput> step(const PassWatch* watch = nullptr);
  bool has_unfinished() const { return scheduler_->has_unfinished() || !cancelled_.empty(); }

  // Held prefixes, by name; a counter of their changes; false for a name that there is not.
  std::vector<PinInfo> pins() const { return pins_->list(); }
  int64_t num_pin_changes() const { return pins_->num_changes(); }
  bool unpin(const std::string& name) { return pins_->release(name); }
  std::vector<Pins::Held> held_pins() const { return pins_->held(); }

  bool has_store() const { return kv_store_ != nullptr; }  // never changes; any thread
  // Whether the KV store has something to do, which `step` moves on. Writing goes on beside steps
  // by itself; callers without requests step once in a while.
  bool is_storing() const { return kv_store_ && kv_store_->is_busy(); }
  // Blocks of a running request that are being read from the store, or will be: those after its
  // sealed ones.
  size_t num_loading_blocks(SequenceId id) const {
    return kv_store_ ? kv_store_->num_loading_blocks(id) : 0;
  }
  // Waits until all blocks that shall be stored are. Gives up, false, if no block is written for
  // seconds. The destructor calls it. Errors: as step.
  bool flush_store();

  // Puts `token_id` in the place of the token that a running request got last: the next step then
  // decodes a given text, for measurements on one. The request's output keeps what was sampled.
  // REQUIRES: the request runs, has generated a token and has not ended; it has neither penalties
  // nor biases; an id of the vocabulary. The request has no drafts from then on.
  void replace_last_token(SequenceId id, int32_t token_id);

  // Logits of every position of `tokens` (f32 [tokens.size(), vocab]); taps go to `recorder`.
  // Errors: as add_request; kInvalidArgument if a request runs or waits; kIo if a KV store that
  // stands still holds blocks that the tokens need.
  // `watch` is asked between passes; when it cancels, the result is empty.
  using Logits = std::vector<float>;
  Logits trace(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
               const PassWatch& watch = {});

  // The same without the logits, which take more memory than the taps of a long text. False when
  // `watch` cancelled; the recorder then holds a part.
  bool record_taps(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                   const PassWatch& watch = {});

  // Log-probability of each token but the first, after all those before it. Runs as `trace` does, a
  // tile of rows at a time. Told after each tile how many there are; false ends with those.
  // Errors: as trace; kModel for logits that are not finite.
  using OnScored = std::function<bool(int64_t num_scored)>;
  std::vector<TokenScore> score(const std::vector<int32_t>& tokens, const OnScored& on_scored);

  // The same for the tokens after the first `num_prompt_tokens`, each by a decode step, as a policy
  // for decode sees them. Told after each. REQUIRES: 0 < num_prompt_tokens < tokens.size().
  std::vector<TokenScore> score_decoded(const std::vector<int32_t>& tokens,
                                        int64_t num_prompt_tokens, const OnScored& on_scored);

  // These three never change; any thread may read them.
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return config_; }
  const EnginePlan& plan() const { return plan_; }

  const BlockManager& blocks() const { return *blocks_; }
  Device& device() const { return *device_; }
  const Residency& residency() const { return *residency_; }
  QueueSizes queue_sizes() const { return scheduler_->queue_sizes(); }
  // The requests that hold KV, in order of arrival.
  std::span<const std::unique_ptr<Sequence>> running() const { return scheduler_->running(); }
  // Of the decode policy. copy_page_reads copies the counts and waits for all passes.
  // REQUIRES for it: there are counts.
  PageReadCounts page_reads() const { return policies_->of(Phase::kDecode).page_reads(); }
  void copy_page_reads(std::vector<int32_t>& counts);
  // Null if nothing is recorded to it. Any thread may read it.
  const TimelineRing* timeline_ring() const { return timeline_ring_.get(); }
  // Waits for all transfers, and hands the spans of all streams to the ring; nothing without one.
  void collect_spans();
  EngineStats stats() const;
  Observations observations() const;
  void write_timeline();                      // as LLM's
  std::vector<std::string> notes() const;     // as LLM's
  std::vector<std::string> warnings() const;  // as LLM's; these of the KV store come last
  size_t num_store_warnings() const { return kv_store_ ? kv_store_->num_warnings() : 0; }
  std::vector<std::string> store_warnings() const;

 private:
  void make_runtime(const EngineOptions& options, Parts& parts, const OnProgress& on_progress);
  void make_kv(const EngineOptions& options, const OnProgress& on_progress);
  void take_cancelled(std::vector<RequestOutput>& outputs);
  void check_choices(const SamplingParams& params) const;
  bool leaves_token(const SamplingParams& params) const;
  void commit(const Batch& batch, std::span<const SampledToken> tokens,
              std::vector<RequestOutput>& outputs);
  void commit_rows(Sequence& sequence, Phase phase, int64_t num_rows);
  void report_token(Sequence& sequence, std::vector<RequestOutput>& outputs);
  // Of decode steps with speculation.
  void make_speculator(const EngineOptions& options, Parts& parts);
  void speculate(Batch& batch);
  void draft_by_source(Batch& batch);
  void draft_by_passes(const Batch& batch);
  void run_draft_pass(const Batch& batch, int64_t num_ahead,
                      const Residency::ExpectNext& expect_next);
  std::vector<ExpectedSequence> expect_next(const Batch& batch) const;
  void commit_verified(const Batch& batch, std::span<const SampledToken> tokens,
                       std::vector<RequestOutput>& outputs);
  void commit_draft(Sequence& sequence, std::span<const SampledToken> tokens);
  void check_ids(const std::vector<int32_t>& ids) const;
  [[noreturn]] void fail_unknown_id(int32_t id) const;
  std::optional<std::span<const SampledToken>> run_batch(const Batch& batch,
                                                         const Residency::ExpectNext& expect_next,
                                                         const PassWatch* watch);
  void account(const Batch& batch, int64_t begin_ns);
  void open_store(const EngineOptions& options, const WeightsHash& weights, StoreFiles* files);
  void make_pins();
  std::unique_ptr<Sequence> make_sequence(std::vector<int32_t> prompt, const SamplingParams& params,
                                          CancelFlag cancel);
  KvStoreObservations store_observations() const;
  void tend_store(std::vector<RequestOutput>& outputs);
  void wait_for_store(const std::vector<RequestOutput>& outputs);
  void append_token(const SampledToken& token);
  FinishReason finish_reason(const Sequence& sequence, int32_t token_id) const;
  bool is_end_token(const Sequence& sequence, int32_t token_id) const;
  void finish(SequenceId id);
  int64_t trace_rows(int64_t num_tokens) const;
  // Errors: kInvalidArgument if a request runs or waits.
  void check_idle() const;
  // The sequence's prefill in passes of trace_rows rows, each run by `run_pass` and observed, until
  // one returns false; then the caller's end_alone gives back what it holds, unless an error did.
  using RunPass = std::function<bool(const Batch& batch)>;
  void run_alone(Sequence& sequence, const RunPass& run_pass);
  // Gives the sequence blocks for all of its tokens. Waits for blocks that the KV store reads into
  // or writes. Errors: kIo if these reads and writes make no progress.
  void begin_alone(Sequence& sequence);
  void end_alone(Sequence& sequence);
  using KeepLogits = std::function<void(std::span<const float> rows)>;
  bool run_traced(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                  const PassWatch& watch, const KeepLogits& keep);
  void tap_kv(const Sequence& sequence, TraceRecorder& recorder);

  // In the order of construction; destroyed in reverse, after the destructor has waited for
  // compute.
  std::unique_ptr<Timeline> timeline_;           // null: nothing is recorded for a file
  std::unique_ptr<TimelineRing> timeline_ring_;  // null: nothing is recorded for watchers
  std::function<int64_t()> now_ns_;
  std::unique_ptr<Device> device_;
  std::string model_path_;
  ModelConfig config_;
  EnginePlan plan_;
  int64_t seed_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
  bool brings_tokenizer_ = false;           // tokenizer_ is the model's own
  std::vector<std::string> file_warnings_;  // of tokenizer and weight files
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<PolicyPair> policies_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<Speculator> speculator_;  // null: without a speculative method
  std::unique_ptr<KvStore> kv_store_;       // null: none is asked for
  std::unique_ptr<Pins> pins_;

  int64_t next_id_ = 0;
  std::vector<RequestOutput> cancelled_;  // to be reported by the next step
  EngineStats stats_;
};

}  // namespace sluice
