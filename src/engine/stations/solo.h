// Solo: passes over a given text while no request runs: scores, logits and taps.
//
// Owned by LlmEngine. All positions are computed, also those in the prefix cache, a tile of rows at
// a time. Errors of every call: those of Front::check; kInvalidArgument if a request runs or waits;
// kIo if a KV store that stands still holds blocks that the text needs. Thread rule: the engine's
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/kv/kv_station.h"
#include "engine/observer.h"
#include "engine/schedule/scheduler.h"
#include "engine/stations/answers.h"
#include "engine/stations/front.h"
#include "engine/stations/rank.h"
#include "engine/trace.h"
#include "sluice/request_output.h"

namespace sluice {

// Of an entry with the token and the likeliest one.
TokenScore token_score(const std::vector<TokenLogprob>& entry);

class Solo {
 public:
  // What it uses of the engine; all outlive it.
  struct Stations {
    Front& front;
    Rank& rank;
    KvStation& kv;
    Observer& observer;
    const Scheduler& scheduler;
    const Answers& answers;
  };
  explicit Solo(const Stations& stations) : stations_(stations) {}

  // Logits of every position of `tokens` (f32 [tokens.size(), vocab]); taps go to `recorder`.
  // `watch` is asked between passes; when it cancels, the result is empty.
  using Logits = std::vector<float>;
  Logits trace(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
               const PassWatch& watch = {});

  // The same without the logits, which take more memory than the taps of a long text. False when
  // `watch` cancelled; the recorder then holds a part.
  bool record_taps(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                   const PassWatch& watch = {});

  // Log-probability of each token but the first, after all those before it. Told after each tile
  // how many there are; false ends with those. Errors also: kModel for logits that are not finite.
  using OnScored = std::function<bool(int64_t num_scored)>;
  std::vector<TokenScore> score(const std::vector<int32_t>& tokens, const OnScored& on_scored);

  // Errors: kInvalidArgument if a request runs or waits.
  void check_idle() const;

 private:
  int64_t max_rows(int64_t num_tokens) const;
  // The sequence's prefill in passes of max_rows rows, each run by `run_pass` and observed, until
  // one returns false; then the caller releases what the sequence holds, unless an error did.
  using RunPass = std::function<bool(const Batch& batch)>;
  void run(Sequence& sequence, const RunPass& run_pass);
  using KeepLogits = std::function<void(std::span<const float> rows)>;
  bool run_traced(const std::vector<int32_t>& tokens, TraceRecorder& recorder,
                  const PassWatch& watch, const KeepLogits& keep);
  void tap_kv(const Sequence& sequence, TraceRecorder& recorder);
  Sequence make_sequence(const std::vector<int32_t>& tokens, const SamplingParams& params);

  Stations stations_;
};

}  // namespace sluice
