// Grammars: structured output. Grammars are asked for when a request arrives, compiled beside the
// passes over its prompt, and give the masks of each pass, which are made beside it.
//
// Owned by LlmEngine. A sequence whose grammar is not compiled yet gets the rows of its prompt but
// the last; others never wait for it. They wait two milliseconds at most for its masks, after
// which it gives no token until these are made. Thread rule: the engine's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/mask_workers.h"
#include "engine/schedule/scheduler.h"
#include "engine/sequence.h"
#include "engine/stations/answers.h"
#include "engine/stations/front.h"
#include "grammar/workshop.h"

namespace sluice {

class Grammars {
 public:
  // A request whose grammar takes longer ends with an error.
  static constexpr std::chrono::seconds kLongestCompilation{10};

  // A sequence that cannot go on, and why.
  struct Failure {
    SequenceId id;
    std::string error;
  };

  // `before_masks`: see EngineParts. REQUIRES: the others outlive this object.
  Grammars(const Front& front, const std::function<int64_t()>& now_ns,
           std::function<void()> before_masks)
      : front_(front), now_ns_(now_ns), workers_(std::move(before_masks)) {}

  // Asks for the sequence's grammar, if it has a structure. REQUIRES: Front::check let it through.
  void begin(Sequence& sequence);
  // The sequences whose grammar or masks failed since the last call. Cost: nothing without either.
  std::vector<Failure> take_failed();
  // Whether some sequence waits; and waits with it, a few milliseconds at most.
  bool wait();
  // The sequence has ended.
  void forget(SequenceId id);

  // Has the masks of all rows made that the pass samples, once it is enqueued: waking a worker
  // takes the engine's thread some microseconds, in which the device would have nothing to do.
  void order_masks(Batch& batch);
  // Cuts the drafts of a sequence before the first one that its grammar does not allow, or that
  // masks which were late do not cover.
  static void cut_drafts(Sequence& sequence);

 private:
  struct Pending {
    Sequence* sequence = nullptr;
    GrammarOrderPtr order;
    int64_t asked_ns = 0;
  };
  struct Ordered {
    SequenceId id;
    std::shared_ptr<MaskOrder> order;
  };
  static std::shared_ptr<MaskOrder> order_of(const Sequence& sequence, int64_t first,
                                             int64_t count);
  // Whether it is no longer pending.
  bool take_compiled(const Pending& pending, std::vector<Failure>& failed);
  void order(Sequence& sequence, std::shared_ptr<MaskOrder> order);
  void take_failed_masks(std::vector<Failure>& failed);

  const Front& front_;
  const std::function<int64_t()>& now_ns_;
  std::vector<Pending> pending_;                        // sequences whose grammar is not compiled
  std::vector<Ordered> ordered_;                        // masks that may still fail
  std::vector<std::shared_ptr<MaskOrder>> new_orders_;  // not given to the workers yet
  MaskWorkers workers_;
};

}  // namespace sluice
