// What an engine says of itself: counts, notes, warnings, the timeline.
#include <fmt/format.h>

#include "engine/llm_engine.h"

namespace sluice {

Observations LlmEngine::observations() const {
  Observations observations = observer_->observations();
  observations.kv_offload = kv_offload_name(plan_.kv_offload);
  observations.device_peak_bytes = device_->peak_allocated_bytes(MemoryKind::kDevice);
  observations.pinned_peak_bytes = device_->peak_allocated_bytes(MemoryKind::kPinned);
  if (speculator_) observations.speculation = speculator_->counts();
  if (kv_store_) observations.kv_store = store_observations();
  return observations;
}

KvStoreObservations LlmEngine::store_observations() const {
  const EngineStats now = stats();
  return {.num_stored_tokens = now.num_stored_tokens,
          .read_bytes = now.store_read_bytes,
          .written_bytes = now.store_written_bytes,
          .num_blocks_written = now.num_store_blocks_written,
          .num_blocks_skipped = now.num_store_blocks_skipped,
          .num_bad_files = now.num_store_bad_files};
}

// A stream gives its spans to the timeline when the host synchronizes with it.
void LlmEngine::write_timeline() {
  if (!timeline_) return;
  compute_->synchronize();
  residency_->synchronize();
  timeline_->write();
}

EngineStats LlmEngine::stats() const {
  EngineStats stats = stats_;
  stats.num_cached_tokens = blocks_->stats().num_hit_tokens;
  stats.num_preemptions = scheduler_->num_preemptions();
  stats.num_graph_launches = runner_->graphs().num_launches();
  observer_->read_transfers(stats);
  if (kv_store_) kv_store_->read_stats(stats);
  if (speculator_) stats.speculation = speculator_->counts();
  return stats;
}

std::vector<std::string> LlmEngine::notes() const {
  std::vector<std::string> notes = plan_.memory.notes;
  notes.push_back(fmt::format("device: {}, {:.2f} GiB in use", device_->info().name,
                              static_cast<double>(plan_.memory.device_used_bytes()) / (1 << 30)));
  notes.push_back(fmt::format("KV cache: {} blocks of {} tokens; policy: {}", plan_.num_blocks,
                              plan_.kv_layout.block.block_tokens, policies_->name()));
  return notes;
}

std::vector<std::string> LlmEngine::warnings() const {
  std::vector<std::string> warnings = config_.warnings;
  warnings.insert(warnings.end(), file_warnings_.begin(), file_warnings_.end());
  warnings.insert(warnings.end(), plan_.memory.warnings.begin(), plan_.memory.warnings.end());
  const std::vector<std::string> of_store = store_warnings();
  warnings.insert(warnings.end(), of_store.begin(), of_store.end());
  return warnings;
}

std::vector<std::string> LlmEngine::store_warnings() const {
  return kv_store_ ? kv_store_->warnings() : std::vector<std::string>();
}

}  // namespace sluice
