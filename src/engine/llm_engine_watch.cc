// What clients that watch an engine read from it, beside its counters.
//
// Both functions wait for the device, so the service calls them seldom and only while a client
// watches. Neither changes a result.
#include "engine/llm_engine.h"

namespace sluice {

void LlmEngine::collect_spans() {
  if (!timeline_ring_) return;
  compute_->synchronize();
  residency_->synchronize();
}

// The target is pageable: the copy is small, seldom, and waited for at once.
void LlmEngine::copy_page_reads(std::vector<int32_t>& counts) {
  const TensorView reads = page_reads().counts;
  counts.resize(static_cast<size_t>(reads.num_elements()));
  compute_->copy({.dst = reinterpret_cast<std::byte*>(counts.data()),
                  .src = reads.bytes(),
                  .num_bytes = reads.num_bytes()});
  compute_->synchronize();
}

}  // namespace sluice
