// Grammars: structured output. Grammars are asked for when a request arrives, compiled beside the
// passes over its prompt, and give the masks of each pass.
//
// Owned by LlmEngine. A sequence whose grammar is not compiled yet gets the rows of its prompt but
// the last; others never wait for it. `check` may be called on any thread, all else on the
// engine's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

  // REQUIRES: both outlive this object.
  Grammars(const Front& front, const std::function<int64_t()>& now_ns)
      : front_(front), now_ns_(now_ns) {}

  // Asks for the sequence's grammar, if it has a structure. REQUIRES: Front::check let it through.
  void begin(Sequence& sequence);
  // The sequences whose grammar failed since the last call. Cost: nothing without compilations.
  std::vector<Failure> take_failed();
  // Whether some sequence waits; and waits with it, a few milliseconds at most.
  bool wait();
  // The sequence has ended.
  void forget(SequenceId id);

  // Makes the masks of all rows that the pass samples, and takes sequences that cannot go on out
  // of it.
  std::vector<Failure> mask(Batch& batch);
  // Cuts the drafts of a sequence before the first one that its grammar does not allow.
  static void cut_drafts(Sequence& sequence);

 private:
  struct Pending {
    SequenceId id;
    GrammarOrderPtr order;
    int64_t asked_ns;
  };

  const Front& front_;
  const std::function<int64_t()>& now_ns_;
  std::vector<Pending> pending_;  // sequences whose grammar is not compiled
};

}  // namespace sluice
