// Chooses between ring and cache.
#include "model/experts/host_experts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sluice {

HostExperts::HostExperts(Device& device, Stream& compute, std::vector<ExpertLayer> layers,
                         const HostExpertSizes& sizes)
    : layers_(std::move(layers)),
      ring_(device, compute, layers_, sizes.num_slots, sizes.skipped_wait) {
  index_of_.assign(static_cast<size_t>(layers_.back().layer.value) + 1, -1);
  for (size_t i = 0; i < layers_.size(); ++i) {
    index_of_[static_cast<size_t>(layers_[i].layer.value)] = static_cast<int32_t>(i);
  }
  if (sizes.num_places == 0) return;
  cache_.emplace(device, compute, layers_, sizes.num_places);
  cached_rows_ = cached_rows(sizes.num_places, layers_);
  rows_with_places_ = ExpertCache::rows_in(sizes.num_places, layers_);
}

int64_t HostExperts::cached_rows(int32_t num_places, std::span<const ExpertLayer> layers) {
  if (num_places == 0) return 0;
  return std::max(ExpertCache::rows_in(num_places, layers), kIndependentExpertRows);
}

int64_t HostExperts::rows_at_once() const {
  return from_cache_ ? rows_with_places_ : std::numeric_limits<int64_t>::max();
}

void HostExperts::begin_pass(int64_t num_rows) {
  from_cache_ = uses_cache(num_rows);
  if (!from_cache_) ring_.begin_pass();
}

ExpertSource HostExperts::provide(LayerId layer, const TensorView& experts) {
  const int32_t index = index_of(layer);
  return from_cache_ ? cache_->find(index, experts) : ring_.use(index, experts);
}

int32_t HostExperts::num_sources(LayerId layer) const {
  if (from_cache_) return cache_->num_places();
  return layers_[static_cast<size_t>(index_of(layer))].num_experts();
}

void HostExperts::finish(LayerId layer) {
  const bool has_experts =
      static_cast<size_t>(layer.value) < index_of_.size() && index_of(layer) >= 0;
  if (!has_experts) return;
  const int32_t index = index_of(layer);
  if (!from_cache_) return ring_.release(index);
  // A small copy in each step, rather than a wait of whoever asks for the counts.
  if (index + 1 == std::ssize(layers_)) cache_->fetch_counts();
}

}  // namespace sluice
