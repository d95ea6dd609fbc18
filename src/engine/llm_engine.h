// LlmEngine: a loop over stations. cancel, tend, schedule, draft, run, commit, answer, observe.
//
// Behind the public LLM (engine/llm.cc). Each station owns what its name says; the loop knows the
// order only. Thread rule: one thread calls it, but for the members that say otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_stations.h"
#include "sluice/observations.h"
#include "sluice/request_output.h"
#include "sluice/sampling_params.h"

namespace sluice {

class LlmEngine {
 public:
  using OnProgress = EngineStations::OnProgress;

  // Loads the model and takes all memory. Errors: those of LLM's constructor.
  LlmEngine(const EngineOptions& options, const OnProgress& on_progress)
      : LlmEngine(options, make_engine_parts(options), on_progress) {}

  // As above with parts of the caller's.
  using Parts = EngineParts;
  LlmEngine(const EngineOptions& options, Parts parts, const OnProgress& on_progress = nullptr)
      : stations_(options, std::move(parts), on_progress) {}

  // Queues a request. Errors: those of Front::check. Nothing is queued then.
  SequenceId add_request(std::vector<int32_t> prompt, const SamplingParams& params,
                         CancelFlag cancel = {});
  // A request that computes or finds a prompt and, when it ends by itself, holds the prompt's KV
  // under `name`, in place of an older pin of this name. Generates one token, which means nothing.
  // What pins made since Pins::check_room have taken is not held. Errors: as add_request.
  // REQUIRES: check_room let it through.
  SequenceId add_pin(const std::string& name, std::vector<int32_t> prompt,
                     const SamplingParams& params, CancelFlag cancel = {});

  // Ends a request at once with kCancelled; its output comes from the next `step`. No effect on
  // a request that has ended.
  void cancel_request(SequenceId id);
  // The same, without an output.
  void drop_request(SequenceId id);

  // At most one output of each request, as its output_kind says. `watch` sees long prefill passes
  // (min_rows, step_watch.h) from inside; one that it cancels changes no request: the next step
  // computes its rows again, or the caller cancels the requests. Requests whose flag is set end
  // before the pass, within it, or after it. REQUIRES: has_unfinished() or is_storing().
  std::vector<RequestOutput> step(const PassWatch* watch = nullptr);
  bool has_unfinished() const {
    return stations_.scheduler->has_unfinished() || stations_.answers->has_cancelled();
  }
  // Whether the KV store has something to do, which `step` moves on. Writing goes on beside steps
  // by itself; callers without requests step once in a while.
  bool is_storing() const { return stations_.kv->store().is_busy(); }
  // As KvStation::flush. The destructor calls it.
  bool flush_store() { return stations_.kv->flush(); }

  // Puts `token_id` in the place of the token that a running request got last: the next step then
  // decodes a given text, for measurements on one. The request's output keeps what was sampled.
  // REQUIRES: the request runs, has generated a token and has not ended; it has neither penalties
  // nor biases; an id of the vocabulary. The request has no drafts from then on.
  void replace_last_token(SequenceId id, int32_t token_id);

  // The stations.
  const Front& front() const { return *stations_.front; }
  Rank& rank() { return *stations_.rank; }
  KvStation& kv() { return *stations_.kv; }
  const KvStation& kv() const { return *stations_.kv; }
  const Scheduler& scheduler() const { return *stations_.scheduler; }
  const Reports& reports() const { return *stations_.reports; }
  Solo& solo() { return *stations_.solo; }

  // Of the stations, for callers that need no more. The first three never change; any thread may
  // read them.
  const Tokenizer& tokenizer() const { return stations_.front->tokenizer(); }
  const ModelConfig& config() const { return stations_.front->config(); }
  const EnginePlan& plan() const { return stations_.front->plan(); }
  const BlockManager& blocks() const { return stations_.kv->blocks(); }
  Device& device() const { return stations_.rank->device(); }
  // Null if experts are on the device.
  const HostExperts* host_experts() const { return stations_.rank->host_experts(); }
  const Residency& residency() const { return stations_.rank->residency(); }
  EngineStats stats() const { return stations_.reports->stats(); }
  Observations observations() const { return stations_.reports->observations(); }
  // Null if nothing is recorded to it. Any thread may read it.
  const TimelineRing* timeline_ring() const { return stations_.recorders.ring.get(); }

 private:
  std::vector<RequestOutput> advance(const PassWatch* watch);
  void fail_request(SequenceId id, std::string error);
  void take_cancelled(std::vector<RequestOutput>& outputs);
  std::optional<std::span<const SampledToken>> run(const Batch& batch, const PassWatch* watch);
  void commit(const Batch& batch, std::span<const SampledToken> tokens,
              std::vector<RequestOutput>& outputs);
  void commit_verified(const Batch& batch, std::span<const SampledToken> tokens,
                       std::vector<RequestOutput>& outputs);
  void commit_draft(Sequence& sequence, std::span<const SampledToken> tokens);
  void report(Sequence& sequence, std::vector<RequestOutput>& outputs);

  EngineStations stations_;
};

}  // namespace sluice
