// Observer: splits what the offload engine counts into phases.
//
// LlmEngine calls it around every step; what it adds up becomes LLM::observations(). A step costs a
// few additions per layer and no allocation, whether anyone looks or not.
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/scheduler.h"
#include "kv/offload_engine.h"
#include "sluice/observations.h"

namespace sluice {

class Observer {
 public:
  // `offload` is null when KV is resident; otherwise it outlives the observer.
  explicit Observer(const OffloadEngine* offload);

  // Before a batch is run: what full attention would have to load for it.
  void begin_step(const Batch& batch);
  // After it was run and committed: what was moved.
  void end_step(const Batch& batch);

  // `selects_all` says whether the policy reads every token. Memory is the caller's to fill in.
  Observations observations(bool selects_all) const;

 private:
  struct PhaseCounts {
    int64_t num_steps = 0;
    int64_t num_tokens = 0;
    int64_t num_slot_waits = 0;
    int64_t history_bytes = 0;  // of one layer, all steps
    OffloadCounters moved;
  };

  PhaseObservations describe(const PhaseCounts& counts, bool selects_all) const;

  const OffloadEngine* offload_;
  OffloadCounters before_;  // when the step began
  PhaseCounts prefill_;
  PhaseCounts decode_;
};

}  // namespace sluice
