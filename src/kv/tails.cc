// A queue of free tails and a sorted list of the taken ones.
#include "kv/tails.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

Tails::Tails(Device& device, Stream& compute, WaitGate& gate, int32_t num_tails)
    : compute_(compute), gate_(gate) {
  holds_.reserve(static_cast<size_t>(num_tails));
  free_.reserve(static_cast<size_t>(num_tails));
  for (int32_t i = 0; i < num_tails; ++i) {
    free_.emplace_back(i);
    left_.push_back(device.make_event());
  }
}

// The hold of the sequence, or the place where it would be inserted.
std::vector<Tails::Hold>::const_iterator Tails::hold_of(SequenceId sequence) const {
  return std::ranges::lower_bound(holds_, sequence, {}, &Hold::sequence);
}

TailId Tails::find(SequenceId sequence) const {
  const auto hold = hold_of(sequence);
  return hold != holds_.end() && hold->sequence == sequence ? hold->tail : TailId();
}

TailId Tails::take(SequenceId sequence) {
  SLUICE_CHECK(!find(sequence).valid(), "sequence {} holds a tail", sequence.value);
  SLUICE_CHECK(!free_.empty(), "all {} tails are taken", num_tails());
  const TailId tail = free_.front();
  free_.erase(free_.begin());
  holds_.insert(hold_of(sequence), Hold{sequence, tail});
  gate_.wait(WaitKind::kTailLeft, compute_, left(tail));
  return tail;
}

void Tails::give_back(SequenceId sequence) {
  const TailId tail = find(sequence);
  if (!tail.valid()) return;
  holds_.erase(hold_of(sequence));
  free_.push_back(tail);
}

}  // namespace sluice
