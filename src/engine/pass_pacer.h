// PassPacer: keeps the host only a few parts ahead of the device within a long pass, so that the
// caller sees progress and can end the pass.
//
// Used by Runner for passes that are watched; all other passes are enqueued without it. It adds one
// event record per part to the stream and changes no result. Cost: none on the device, since two
// more parts are always in the stream while the host waits. Thread rule: the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "device/device.h"
#include "model/pass_monitor.h"
#include "sluice/progress.h"

namespace sluice {

// Callbacks of a caller that observes a running pass. All are called on the engine's thread; each
// may be empty.
struct PassWatch {
  std::function<void(int64_t num_rows_done)> on_progress;  // rows of the pass times the share done
  // The same for each prompt of the pass. Only LlmEngine::step calls it (step_watch.h).
  std::function<void(const PromptProgress& progress)> on_prompt = {};
  // Before each prefill pass of LlmEngine::step, watched or not, for each prompt of it: what is
  // done already. The first call for a request says when it stopped waiting.
  std::function<void(const PromptProgress& progress)> on_begin = {};
  std::function<bool()> should_cancel;  // called every 20 to 400 us while waiting; true: end
  int64_t min_rows = 0;                 // passes with fewer rows are not watched
};

// Thrown through the pass when it is cancelled. Runner::run catches it.
struct PassCancelled {};

class PassPacer final : public PassMonitor {
 public:
  // Makes the events once; a pass takes none.
  explicit PassPacer(Device& device);

  // Starts a pass of `num_rows` rows. REQUIRES: `watch` outlives the pass.
  void begin(const PassWatch& watch, int64_t num_rows);

  // Records an event after the part, then waits until all parts but the newest two are done on the
  // device. Errors: PassCancelled.
  void on_part(Stream& stream, double share) override;

 private:
  // The end of one enqueued part, and the share of the pass that is done there.
  struct Mark {
    std::unique_ptr<Event> event;
    double share = 0;
  };

  void wait_for(const Event& event) const;

  // Two: while one part runs, another is in the stream, even if the host wakes up late.
  static constexpr size_t kPartsAhead = 2;
  std::array<Mark, kPartsAhead + 1> marks_;  // part i uses marks_[i % size]
  size_t num_parts_ = 0;                     // enqueued in this pass
  const PassWatch* watch_ = nullptr;
  int64_t num_rows_ = 0;
};

}  // namespace sluice
