// Differences of counters.
#include "engine/observer.h"

#include <algorithm>

namespace sluice {

Observer::Observer(const OffloadEngine* offload) : offload_(offload) {
  if (!offload_) return;
  const auto num_layers = static_cast<size_t>(offload_->layout().num_layers);
  for (PhaseCounts* phase : {&prefill_, &decode_}) {
    phase->moved.loaded_bytes.resize(num_layers);
    phase->moved.written_bytes.resize(num_layers);
  }
}

void Observer::begin_step(const Batch& batch) {
  PhaseCounts& phase = batch.phase == Phase::kPrefill ? prefill_ : decode_;
  ++phase.num_steps;
  phase.num_tokens += batch.num_rows();
  if (!offload_) return;
  before_ = offload_->counters();
  const auto block_bytes = static_cast<int64_t>(offload_->layout().block_bytes());
  for (const ScheduledSequence& scheduled : batch.sequences) {
    phase.history_bytes += scheduled.sequence->kv.num_sealed_blocks() * block_bytes;
  }
}

void Observer::end_step(const Batch& batch) {
  if (!offload_) return;
  PhaseCounts& phase = batch.phase == Phase::kPrefill ? prefill_ : decode_;
  const OffloadCounters& now = offload_->counters();
  for (size_t layer = 0; layer < now.loaded_bytes.size(); ++layer) {
    phase.moved.loaded_bytes[layer] += now.loaded_bytes[layer] - before_.loaded_bytes[layer];
    phase.moved.written_bytes[layer] += now.written_bytes[layer] - before_.written_bytes[layer];
  }
  const int64_t num_loads = now.num_loads - before_.num_loads;
  phase.moved.num_loads += num_loads;
  phase.moved.num_copies += now.num_copies - before_.num_copies;
  phase.num_slot_waits += std::max<int64_t>(0, num_loads - offload_->num_slots());
}

PhaseObservations Observer::describe(const PhaseCounts& counts, bool selects_all) const {
  PhaseObservations result{.num_steps = counts.num_steps,
                           .num_tokens = counts.num_tokens,
                           .num_loads = counts.moved.num_loads,
                           .num_copies = counts.moved.num_copies,
                           .num_slot_waits = counts.num_slot_waits,
                           .layers = {}};
  for (size_t layer = 0; layer < counts.moved.loaded_bytes.size(); ++layer) {
    LayerObservations of_layer{.h2d_bytes = counts.moved.loaded_bytes[layer],
                               .d2h_bytes = counts.moved.written_bytes[layer],
                               .density_selected = {},
                               .density_transferred = {}};
    if (selects_all && counts.num_steps > 0) of_layer.density_selected = 1;
    if (counts.history_bytes > 0) {
      of_layer.density_transferred =
          static_cast<double>(of_layer.h2d_bytes) / static_cast<double>(counts.history_bytes);
    }
    result.layers.push_back(of_layer);
  }
  return result;
}

Observations Observer::observations(bool selects_all) const {
  Observations result;
  result.prefill = describe(prefill_, selects_all);
  result.decode = describe(decode_, selects_all);
  return result;
}

}  // namespace sluice
