// Drafts: what decode steps do for speculation. This class does nothing: an engine without a
// speculative method has it. SpeculativeDrafts is the other kind.
//
// Owned by LlmEngine. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/sampling/sampler.h"
#include "engine/schedule/scheduler.h"
#include "engine/sequence.h"
#include "sluice/observations.h"

namespace sluice {

class Drafts {
 public:
  virtual ~Drafts() = default;

  // Makes a verify pass of a decode step, by drafts for its sequences (DraftSlot::tokens). May run
  // passes. Errors: as Rank::run.
  virtual void plan(Batch& /*batch*/) {}
  // The pass that followed `plan` ended at this time.
  virtual void measured(const Batch& /*batch*/, int64_t /*end_ns*/) {}

  // Whether draft `index` of the sequence is the token that the verifying pass gave for its
  // position. May replace the token (forced acceptance, for benchmarks).
  virtual bool accepts(const Sequence& /*sequence*/, size_t /*index*/, SampledToken& /*token*/) {
    return false;
  }
  // The step's draft was judged: its first `num_accepted` tokens are in the text.
  virtual void judged(Sequence& /*sequence*/, int64_t /*num_accepted*/) {}
  // The sequence has ended.
  virtual void forget(SequenceId /*id*/) {}

  // Of all sequences, empty without speculation; and the time of draft passes.
  virtual std::optional<SpeculationCounts> counts() const { return std::nullopt; }
  virtual int64_t draft_ns() const { return 0; }
};

}  // namespace sluice
