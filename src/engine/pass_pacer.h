// PassPacer: keeps the host only a few parts ahead of the device within a long pass, so that the
// caller sees progress and can end the pass.
//
// Used by Runner for passes that are watched; all other passes are enqueued without it. It adds one
// event record per part to the stream and changes no result. Cost: none on the device, since two
// more parts are always in the stream while the host waits. Of several ranks the first one has it,
// and the others a PassFollower, which goes as far (device/host/part_limit.h). Thread rule: the
// engine's thread; of a PassFollower, its rank's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "device/device.h"
#include "device/host/part_limit.h"
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
  // Makes the events once; a pass takes none. `limit`: of several ranks, else null.
  PassPacer(Device& device, PartLimit* limit);

  // Starts a pass of `num_rows` rows. REQUIRES: `watch` outlives the pass.
  void begin(const PassWatch& watch, int64_t num_rows);

  // Records an event after the part, then waits until all parts but the newest two are done on the
  // device. Errors: PassCancelled; of several ranks after the last part that another may enqueue,
  // one or two later, and kDevice if one has failed.
  void on_part(Stream& stream, double share) override;

 private:
  // The end of one enqueued part, and the share of the pass that is done there.
  struct Mark {
    std::unique_ptr<Event> event;
    double share = 0;
  };

  // False: the pass is to be cancelled.
  bool wait_for(const Event& event) const;
  void end();

  // Two: while one part runs, another is in the stream, even if the host wakes up late.
  static constexpr size_t kPartsAhead = 2;
  std::array<Mark, kPartsAhead + 1> marks_;  // part i uses marks_[i % size]
  size_t num_parts_ = 0;                     // enqueued in this pass
  bool is_ending_ = false;                   // after the parts that other ranks enqueue as well
  PartLimit* const limit_;
  const PassWatch* watch_ = nullptr;
  int64_t num_rows_ = 0;
};

class PassFollower final : public PassMonitor {
 public:
  explicit PassFollower(PartLimit* limit) : limit_(limit) {}

  // Waits until the next part may be enqueued. Errors: PassCancelled; kDevice if a rank has failed.
  void on_part(Stream& stream, double share) override;

 private:
  PartLimit* const limit_;
  int64_t num_parts_ = 0;  // of all watched passes
};

}  // namespace sluice
