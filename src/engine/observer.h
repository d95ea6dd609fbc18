// Observer: splits what the residency counts into phases, and counts what policies select.
//
// LlmEngine calls it around every step; what it adds up becomes LLM::observations(). A step costs a
// few additions per layer and no allocation, whether anyone looks or not; where a policy selects,
// its rule is evaluated for each row.
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/policy_pair.h"
#include "attention/residency.h"
#include "engine/scheduler.h"
#include "sluice/observations.h"

namespace sluice {

class Observer {
 public:
  // REQUIRES: the residency outlives the observer.
  Observer(const Residency& residency, const PolicyPair& policies, const KvBlockShape& block);

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
    TransferCounters moved;
    // Where the policy selects.
    int64_t num_sequence_steps = 0;
    int64_t num_fallbacks = 0;
    int64_t num_visible_tokens = 0;  // of all rows
    int64_t num_selected_tokens = 0;
    bool selected_is_known = true;
  };

  void count_selected(const ScheduledSequence& scheduled, Phase phase, PhaseCounts& counts);
  PhaseObservations describe(const PhaseCounts& counts, Phase phase) const;

  const SelectionRule& rule(Phase phase) const {
    return phase == Phase::kPrefill ? prefill_rule_ : decode_rule_;
  }

  const Residency& residency_;
  std::string policy_name_;
  SelectionRule prefill_rule_;
  SelectionRule decode_rule_;
  TransferCounters before_;  // when the step began
  TransferCounters now_;     // scratch of end_step, so that it allocates nothing
  PhaseCounts prefill_;
  PhaseCounts decode_;
};

}  // namespace sluice
