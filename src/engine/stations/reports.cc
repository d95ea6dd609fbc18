// Counts are read from the stations when they are asked for.
#include "engine/stations/reports.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sluice {
namespace {

// Empty without experts in host memory. REQUIRES: the host waited for the last pass.
std::optional<ExpertObservations> observe_experts(const HostExperts* experts) {
  if (experts == nullptr) return std::nullopt;
  ExpertObservations result{.streamed_bytes = experts->ring().loaded_bytes()};
  if (experts->cache() == nullptr) return result;
  const ExpertCounts counts = experts->cache()->counts();
  result.num_hits = counts.num_hits;
  result.num_misses = counts.num_misses;
  result.fetched_bytes = counts.num_bytes;
  return result;
}

}  // namespace

TraceSink* Recorders::sink() const {
  if (ring) return ring.get();
  return timeline.get();
}

void Reports::add_step(const Batch& batch, int64_t begin_ns, int64_t end_ns) {
  if (TraceSink* sink = stations_.recorders.sink()) {
    sink->take("engine", {{pass_name(batch.kind).data(), begin_ns, end_ns}});
  }
  const bool is_prefill = batch.kind.is_prefill;
  (is_prefill ? sums_.prefill_ns : sums_.decode_ns) += end_ns - begin_ns;
  if (is_prefill) sums_.num_prompt_tokens += batch.num_rows();
  ++sums_.num_steps;
  sums_.experts = observe_experts(stations_.rank.host_experts());
}

EngineStats Reports::stats() const {
  EngineStats stats = sums_;
  stats.num_generated_tokens = stations_.answers.num_generated_tokens();
  stats.draft_ns = stations_.drafts.draft_ns();
  stats.speculation = stations_.drafts.counts();
  stats.num_cached_tokens = stations_.kv.blocks().stats().num_hit_tokens;
  stats.num_preemptions = stations_.scheduler.num_preemptions();
  stats.num_graph_launches = stations_.rank.runner().graphs().num_launches();
  stations_.observer.read_transfers(stats);
  stations_.kv.store().read_stats(stats);
  stats.kv_events = stations_.kv.events().stats();
  return stats;
}

Observations Reports::observations() const {
  const Device& device = stations_.rank.device();
  Observations observations = stations_.observer.observations();
  observations.kv_offload = kv_offload_name(stations_.front.plan().kv_offload);
  observations.device_peak_bytes = device.peak_allocated_bytes(MemoryKind::kDevice);
  observations.pinned_peak_bytes = device.peak_allocated_bytes(MemoryKind::kPinned);
  if (stations_.rank.host_experts() != nullptr) stations_.rank.compute().synchronize();
  observations.experts = observe_experts(stations_.rank.host_experts());
  observations.speculation = stations_.drafts.counts().value_or(SpeculationCounts());
  if (!stations_.kv.store().exists()) return observations;
  EngineStats of_store;
  stations_.kv.store().read_stats(of_store);
  observations.kv_store = {.num_stored_tokens = of_store.num_stored_tokens,
                           .read_bytes = of_store.store_read_bytes,
                           .written_bytes = of_store.store_written_bytes,
                           .num_blocks_written = of_store.num_store_blocks_written,
                           .num_blocks_skipped = of_store.num_store_blocks_skipped,
                           .num_bad_files = of_store.num_store_bad_files};
  return observations;
}

std::vector<std::string> Reports::notes() const {
  const EnginePlan& plan = stations_.front.plan();
  std::vector<std::string> notes = plan.memory.notes;
  notes.push_back(fmt::format("device: {}, {:.2f} GiB in use", stations_.rank.device().info().name,
                              static_cast<double>(plan.memory.device_used_bytes()) / (1 << 30)));
  notes.push_back(fmt::format("KV cache: {} blocks of {} tokens; policy: {}", plan.num_blocks,
                              plan.kv_layout.block.block_tokens, stations_.rank.policies().name()));
  const std::vector<std::string> endpoints = stations_.kv.events().endpoints();
  if (!endpoints.empty()) {
    notes.push_back(fmt::format("KV events: {}", fmt::join(endpoints, ", replays on ")));
  }
  return notes;
}

std::vector<std::string> Reports::warnings() const {
  std::vector<std::string> warnings = stations_.front.warnings();
  const std::vector<std::string> of_store = stations_.kv.store().warnings();
  warnings.insert(warnings.end(), of_store.begin(), of_store.end());
  return warnings;
}

// A stream gives its spans to what records them when the host synchronizes with it.
void Reports::write_timeline() const {
  if (!stations_.recorders.timeline) return;
  stations_.rank.synchronize();
  stations_.recorders.timeline->write();
}

void Reports::collect_spans() const {
  if (stations_.recorders.ring) stations_.rank.synchronize();
}

PageReadCounts Reports::page_reads() const {
  return stations_.rank.policies().decode().page_reads();
}

// The target is pageable: the copy is small, seldom, and waited for at once.
void Reports::copy_page_reads(std::vector<int32_t>& counts) const {
  Stream& compute = stations_.rank.compute();
  const TensorView reads = page_reads().counts;
  counts.resize(static_cast<size_t>(reads.num_elements()));
  compute.copy({.dst = reinterpret_cast<std::byte*>(counts.data()),
                .src = reads.bytes(),
                .num_bytes = reads.num_bytes()});
  compute.synchronize();
}

}  // namespace sluice
