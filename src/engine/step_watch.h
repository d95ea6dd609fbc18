// StepWatch: what the engine looks at while a prefill pass runs: the progress of each prompt, and
// the flags that cancel requests.
//
// LlmEngine makes one for a long pass and hands its PassWatch to the runner. Thread rule: the
// engine's thread; only the flags are set from others.
#pragma once

#include <cstdint>

#include "engine/pass_pacer.h"
#include "engine/schedule/scheduler.h"

namespace sluice {

class StepWatch {
 public:
  // `caller` may be null: then only flags are looked at. REQUIRES: batch and caller outlive this
  // object.
  StepWatch(const Batch& batch, const PassWatch* caller);
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // Whether the pass should be watched: it may take long, and a caller watches it or a flag can
  // cancel it. Long are passes of `min_rows` rows, and shorter ones whose attention reads as much
  // by their history.
  static bool is_needed(const Batch& batch, const PassWatch* caller, int64_t min_rows);

  // Tells the caller of the prompts of a prefill pass that is about to run.
  void begin() const;
  const PassWatch& pass() const { return watch_; }

 private:
  void report(int64_t num_rows_done) const;
  bool should_cancel() const;

  const Batch& batch_;
  const PassWatch* caller_;
  const PassWatch watch_;
};

}  // namespace sluice
