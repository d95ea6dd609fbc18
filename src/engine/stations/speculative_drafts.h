// SpeculativeDrafts: the drafts of decode steps with speculation.
//
// A step has up to k draft passes, each an ordinary decode pass one row further ahead, and a verify
// pass over the newest token and the drafts of every sequence. The verify pass writes the KV of all
// its rows again, with full attention. Its rows are then committed one by one, as those of as many
// decode steps, up to the first draft that differs (docs/adr/0024). Thread rule: the engine's
// thread.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/kv/kv_station.h"
#include "engine/observer.h"
#include "engine/speculation/speculator.h"
#include "engine/stations/answers.h"
#include "engine/stations/drafts.h"
#include "engine/stations/grammars.h"
#include "engine/stations/rank.h"

namespace sluice {

class SpeculativeDrafts final : public Drafts {
 public:
  // What it uses of the engine; all outlive it.
  struct Stations {
    Rank& rank;
    KvStation& kv;
    Observer& observer;
    const Answers& answers;
    Grammars& grammars;
    const std::function<int64_t()>& now_ns;
  };
  SpeculativeDrafts(const Stations& stations, Speculator::Parts parts)
      : stations_(stations), speculator_(std::move(parts)) {}

  // A verify pass also without drafts where the decode policy only drafts.
  void plan(Batch& batch) override;
  void measured(const Batch& batch, int64_t end_ns) override;
  bool accepts(const Sequence& sequence, size_t index, SampledToken& token) override;
  void judged(Sequence& sequence, int64_t num_accepted) override;
  void forget(SequenceId id) override { speculator_.forget(id); }
  std::optional<SpeculationCounts> counts() const override { return speculator_.counts(); }
  int64_t draft_ns() const override { return draft_ns_; }

 private:
  void draft_by_source(Batch& batch);
  void draft_by_passes(const Batch& batch);
  void run_draft_pass(const Batch& batch, int64_t num_ahead,
                      std::vector<ExpectedSequence> expected);

  Stations stations_;
  Speculator speculator_;
  int64_t planned_ns_ = 0;  // when the last `plan` ended
  int64_t draft_ns_ = 0;
};

}  // namespace sluice
