// LlmEngine: the loop. schedule, run, commit.
//
// Behind the public LLM (engine/llm.cc). Owns every part of the engine and the order in which they
// are made and destroyed. Thread rule: one thread calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/executor.h"
#include "engine/engine_plan.h"
#include "engine/observer.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/timeline.h"
#include "engine/trace.h"
#include "kv/block_manager.h"
#include "kv/device_pool.h"
#include "kv/offload_engine.h"
#include "model/decoder.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "sluice/engine_options.h"
#include "sluice/llm.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

class LlmEngine {
 public:
  using OnProgress = std::function<void(const LoadProgress&)>;

  // Loads the model and takes all memory. Errors: those of LLM's constructor.
  LlmEngine(const EngineOptions& options, const OnProgress& on_progress);

  // As above with parts from a test or a measurement: another device, another policy.
  struct TestParts {
    std::unique_ptr<Timeline> timeline = nullptr;  // what the device records to, if anything
    std::unique_ptr<Device> device;
    std::unique_ptr<Policy> policy = nullptr;  // null: the options' one
    SkippedWait skipped_wait;                  // of the offload engine
    bool force_graphs = false;                 // replay decode steps where the plan would not
  };
  LlmEngine(const EngineOptions& options, TestParts parts, const OnProgress& on_progress = nullptr);

  ~LlmEngine();

  // Queues a request. Errors: kInvalidArgument for bad parameters, an empty prompt, ids outside the
  // vocabulary; kDoesNotFit when prompt + max_tokens can never fit. Nothing is queued then.
  SequenceId add_request(std::vector<int32_t> prompt, const SamplingParams& params);

  // Ends a request at once with kCancelled; its output comes from the next `step`. No effect on
  // a request that has ended.
  void cancel_request(SequenceId id);

  // Which outputs `step` returns. A copy of each one that grew, for each of its tokens, takes a
  // share of a step of hundreds of sequences that can be saved when nobody looks.
  enum class Report { kChanged, kFinished };

  // schedule, run, commit; outputs of the requests that changed. REQUIRES: has_unfinished().
  std::vector<RequestOutput> step(Report report = Report::kChanged);
  bool has_unfinished() const { return scheduler_->has_unfinished() || !cancelled_.empty(); }

  // Puts `token_id` in the place of the token that a running request got last: the next step then
  // decodes a given text, for measurements on one. The request's output keeps what was sampled.
  // REQUIRES: the request runs, has generated a token and has not ended; an id of the vocabulary.
  void replace_last_token(SequenceId id, int32_t token_id);

  // Logits of every position of `tokens` (f32 [tokens.size(), vocab]); taps go to `recorder`.
  // Errors: as add_request; kInvalidArgument when part of it is in the prefix cache.
  // REQUIRES: nothing else is running.
  using Logits = std::vector<float>;
  Logits trace(const std::vector<int32_t>& tokens, TraceRecorder& recorder);

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ModelConfig& config() const { return config_; }
  const EnginePlan& plan() const { return plan_; }
  const BlockManager& blocks() const { return *blocks_; }
  Device& device() const { return *device_; }
  const OffloadEngine* offload() const { return offload_.get(); }  // null: KV is resident
  EngineStats stats() const;
  Observations observations() const;
  void write_timeline();  // as LLM's
  std::vector<std::string> notes() const;

 private:
  void make_runtime(const EngineOptions& options, TestParts& parts, const OnProgress& on_progress);
  void make_kv(const EngineOptions& options, SkippedWait skipped_wait,
               const OnProgress& on_progress);
  void flush_sealed_tail(const Batch& batch, const ScheduledSequence& scheduled);
  void check_request(const std::vector<int32_t>& prompt, const SamplingParams& params) const;
  void commit(const Batch& batch, std::span<const SampledToken> tokens, Report report,
              std::vector<RequestOutput>& outputs);
  void account(const Batch& batch, int64_t begin_ns);
  void append_token(const SampledToken& token);
  FinishReason finish_reason(const Sequence& sequence, int32_t token_id) const;
  bool is_end_token(const Sequence& sequence, int32_t token_id) const;
  void finish(SequenceId id);
  int64_t trace_rows() const;
  void tap_kv(const Sequence& sequence, TraceRecorder& recorder);

  // In the order of construction; destroyed in reverse, after the destructor has waited for
  // compute.
  std::unique_ptr<Timeline> timeline_;  // null: nothing is recorded
  std::unique_ptr<Device> device_;
  ModelConfig config_;
  EnginePlan plan_;
  int64_t seed_ = 0;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<DevicePool> pool_;        // resident KV
  std::unique_ptr<OffloadEngine> offload_;  // offloaded KV
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<BlockManager> blocks_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Observer> observer_;

  int64_t next_id_ = 0;
  std::vector<RequestOutput> cancelled_;  // to be reported by the next step
  EngineStats stats_;
};

}  // namespace sluice
