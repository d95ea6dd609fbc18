// PassPacer: lets the host run only a little ahead of the device within a long pass, so that the
// caller sees progress and can end the pass.
//
// Used by Runner for passes that are watched; all others are enqueued without it. It changes what
// is enqueued by one event record for each part, so no bit depends on it. Cost: while the host
// waits for a part, the next ones are in the stream already, so the device does not idle.
// Thread rule: the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "device/device.h"
#include "model/pass_monitor.h"

namespace sluice {

// What a caller asks of a pass while it runs. Both are called on the engine's thread; either may be
// null.
struct PassWatch {
  std::function<void(int64_t num_rows_done)> on_progress;  // rows times the share that is done
  std::function<bool()> should_cancel;  // asked many times a second; true ends the pass
  int64_t min_rows = 0;                 // shorter passes are not watched
};

// Thrown through the pass when it is cancelled. Runner::run catches it.
struct PassCancelled {};

class PassPacer final : public PassMonitor {
 public:
  explicit PassPacer(Device& device);

  // A pass of `num_rows` rows begins. REQUIRES: `watch` outlives the pass.
  void begin(const PassWatch& watch, int64_t num_rows);

  // Waits until all parts but the newest two are done. Errors: PassCancelled.
  void on_part(Stream& stream, double share) override;

 private:
  struct Mark {
    std::unique_ptr<Event> event;
    double share = 0;
  };

  void wait_for(const Event& event) const;

  // Two: while one part runs, another waits in the stream, however late the host wakes up.
  static constexpr size_t kPartsAhead = 2;
  std::array<Mark, kPartsAhead + 1> marks_;  // of part i: marks_[i % size]
  size_t num_parts_ = 0;                     // enqueued in this pass
  const PassWatch* watch_ = nullptr;
  int64_t num_rows_ = 0;
};

}  // namespace sluice
