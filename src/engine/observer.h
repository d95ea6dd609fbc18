// Observer: counts transfers by phase, the tokens and tiles that policies select, and the mass that
// these captured.
//
// LlmEngine calls it around every step, and around every pass of a trace or score; the sums become
// LLM::observations(). A step costs a few additions per layer and no allocation. If a policy
// selects, its rule is evaluated for each row.
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/policy_pair.h"
#include "attention/residency.h"
#include "engine/mass_sums.h"
#include "engine/schedule/scheduler.h"
#include "sluice/observations.h"
#include "sluice/request_output.h"

namespace sluice {

class Observer {
 public:
  // REQUIRES: the residency and the policies outlive the observer.
  Observer(const Residency& residency, const PolicyPair& policies, const KvBlockShape& block);

  // Before a batch runs: counts what full attention would load for it and what the policy selects.
  void begin_step(const Batch& batch);
  // After a prefill pass has run, before its sequences get a token: adds what the audit counted in
  // the pass's sequence `index`, whose KV is committed, to that sequence and to the sums. Nothing
  // without an audit, and for generated tokens that are computed again after a preemption.
  void count_mass(Sequence& sequence, int64_t index);
  // After the batch has run and was committed: adds the bytes moved since begin_step.
  void end_step(const Batch& batch);

  // Sets the bytes moved and the slot waits of all steps that have ended.
  void read_transfers(EngineStats& stats) const;
  // The sums so far. REQUIRES: the host has waited for the last pass. Memory figures and the
  // offload mode stay empty; the caller sets them.
  Observations observations() const;

 private:
  // Sums over all steps of one phase.
  struct PhaseCounts {
    int64_t num_steps = 0;
    int64_t num_tokens = 0;      // rows, all sequences
    int64_t num_slot_waits = 0;  // loads that had to wait for a slot of the same step
    int64_t history_bytes = 0;   // that full attention would load, of one layer
    TransferCounters moved;
    // The rest counts only if the phase's policy selects.
    int64_t num_sequence_steps = 0;  // sequences, summed over steps
    int64_t num_fallbacks = 0;       // of these, with everything selected
    int64_t num_full_rows = 0;       // with everything selected
    int64_t num_visible_tokens = 0;  // tokens at or before each row, summed over rows
    int64_t num_selected_tokens = 0;
    bool selected_is_known = true;  // false after a row whose rule gives no number
    // Of one layer, all masks of a query tile; only if the policy selects tiles.
    int64_t num_visible_tiles = 0;
  };

  void count_selected(const ScheduledSequence& scheduled, const SelectionRule& rule,
                      PhaseCounts& counts);
  int64_t count_tiles(const ScheduledSequence& scheduled, const SelectionRule& rule) const;
  PhaseObservations describe(const PhaseCounts& counts, const SelectionRule& rule) const;
  void describe_tiles(const PhaseCounts& counts, PhaseObservations& result) const;

  PhaseCounts& counts_of(const Batch& batch) {
    if (batch.kind.is_prefill) return prefill_;
    return batch.kind.is_draft ? draft_ : decode_;
  }

  const Residency& residency_;
  const PolicyPair& policies_;
  PassRules rules_;
  TransferCounters before_;  // totals when the step began
  TransferCounters now_;     // totals at its end; a member, so that end_step allocates nothing
  PhaseCounts prefill_;
  PhaseCounts decode_;
  PhaseCounts draft_;
  bool verifies_ = false;  // some decode step was a verify pass, which attends to everything
  MassSums mass_;          // of all sequences
};

}  // namespace sluice
