// Observer: splits what the offload engine counts into phases, and works out what a policy selects.
//
// LlmEngine calls it around every step; what it adds up becomes LLM::observations(). A step costs a
// few additions per layer and no allocation, whether anyone looks or not; where a policy selects,
// also a question to it for each row.
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/policy.h"
#include "engine/scheduler.h"
#include "kv/offload_engine.h"
#include "sluice/observations.h"

namespace sluice {

class Observer {
 public:
  // `offload` is null when KV is resident; otherwise it outlives the observer, and so does
  // `policy`.
  Observer(const OffloadEngine* offload, const Policy& policy);

  // Before a batch is run: what full attention would have to load for it, and what it selects.
  void begin_step(const Batch& batch);
  // After it was run and committed: what was moved.
  void end_step(const Batch& batch);

  // Memory is the caller's to fill in.
  Observations observations() const;

 private:
  struct PhaseCounts {
    int64_t num_steps = 0;
    int64_t num_tokens = 0;
    int64_t num_slot_waits = 0;
    int64_t history_bytes = 0;  // of one layer, all steps
    OffloadCounters moved;      // loaded_bytes: gathers included
    // Where the policy selects.
    int64_t num_sequence_steps = 0;
    int64_t num_fallbacks = 0;
    int64_t num_visible_tokens = 0;  // of all rows
    int64_t num_selected_tokens = 0;
    bool selected_is_known = true;
  };

  void count_selected(const ScheduledSequence& scheduled, Phase phase, PhaseCounts& counts);
  PhaseObservations describe(const PhaseCounts& counts, Phase phase) const;

  const OffloadEngine* offload_;
  const Policy& policy_;
  OffloadCounters before_;                // when the step began
  std::vector<int64_t> gathered_before_;  // [num_layers]
  PhaseCounts prefill_;
  PhaseCounts decode_;
};

}  // namespace sluice
