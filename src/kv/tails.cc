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

// The first hold of the sequence, or the place where it would be inserted.
std::vector<Tails::Hold>::const_iterator Tails::hold_of(SequenceId sequence) const {
  return std::ranges::lower_bound(holds_, sequence, {}, &Hold::sequence);
}

TailId Tails::find(SequenceId sequence, int32_t index) const {
  const auto first = hold_of(sequence);
  if (holds_.end() - first <= index) return TailId();
  const Hold& hold = *(first + index);
  return hold.sequence == sequence ? hold.tail : TailId();
}

TailId Tails::take(SequenceId sequence) {
  SLUICE_CHECK(!free_.empty(), "all {} tails are taken", num_tails());
  const TailId tail = free_.front();
  free_.erase(free_.begin());
  const auto end = std::ranges::upper_bound(holds_, sequence, {}, &Hold::sequence);
  holds_.insert(end, Hold{sequence, tail});
  gate_.wait(WaitKind::kTailLeft, compute_, left(tail));
  return tail;
}

void Tails::give_back_from(SequenceId sequence, int32_t index, int32_t count) {
  for (TailId tail = find(sequence, index); tail.valid() && count > 0; --count) {
    holds_.erase(hold_of(sequence) + index);
    free_.push_back(tail);
    tail = find(sequence, index);
  }
}

}  // namespace sluice
