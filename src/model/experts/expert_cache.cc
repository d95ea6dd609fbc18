// Cuts the memory of the cache and enqueues its ops.
#include "model/experts/expert_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "ops/experts/fetch_experts.h"

namespace sluice {
namespace {

int32_t most_experts(std::span<const ExpertLayer> layers) {
  int32_t most = 0;
  for (const ExpertLayer& layer : layers) most = std::max(most, layer.num_experts());
  return most;
}

void copy_values(Stream& stream, const std::vector<int32_t>& values, const TensorView& to) {
  SLUICE_CHECK(values.size() * sizeof(int32_t) == to.num_bytes());
  stream.copy({.dst = to.bytes(),
               .src = reinterpret_cast<const std::byte*>(values.data()),
               .num_bytes = to.num_bytes()});
  stream.synchronize();  // the copy reads `values`
}

}  // namespace

int32_t ExpertCache::fewest_places(std::span<const ExpertLayer> layers) {
  int32_t fewest = 0;
  for (const ExpertLayer& layer : layers) fewest = std::max(fewest, layer.num_chosen);
  return fewest;
}

int64_t ExpertCache::rows_in(int32_t num_places, std::span<const ExpertLayer> layers) {
  return num_places / std::max(fewest_places(layers), 1);
}

// Sets first: they are filled as one range.
ExpertCache::Memory ExpertCache::cut(Arena& arena, std::span<const ExpertLayer> layers,
                                     int32_t num_places) {
  const auto num_sets = std::ssize(layers);
  const int64_t places = num_places;
  const int64_t num_keys = most_experts(layers);
  const int64_t chosen = fewest_places(layers);
  const int64_t max_rows = rows_in(num_places, layers);
  Memory memory;
  memory.sets = cut_hot_page_sets(arena, num_sets, num_keys, places);
  memory.counts = arena.tensor(DType::kI64, {num_sets, kNumHotCounts + 1});
  memory.missing = {.keys = arena.tensor(DType::kI32, {1, places}),
                    .places = arena.tensor(DType::kI32, {1, places}),
                    .count = arena.tensor(DType::kI32, {1})};
  memory.places = arena.tensor(DType::kI32, {max_rows * chosen});
  memory.page_count = arena.tensor(DType::kI32, {chosen + 1, max_rows});
  memory.block_ids = arena.tensor(DType::kI32, {max_rows, num_keys});
  memory.kv_end = arena.tensor(DType::kI32, {max_rows});
  for (const ExpertLayer& layer : layers) {
    const auto cut_places = [&](const PackedExperts& experts) {
      return arena.tensor(DType::kU8, {places, static_cast<int64_t>(experts.stride_bytes)});
    };
    memory.gate_up.push_back(cut_places(layer.gate_up));
    memory.down.push_back(cut_places(layer.down));
  }
  return memory;
}

size_t ExpertCache::device_bytes(std::span<const ExpertLayer> layers, int32_t num_places) {
  if (num_places == 0) return 0;
  Arena plan;
  cut(plan, layers, num_places);
  return plan.used_bytes();
}

size_t ExpertCache::pinned_bytes(std::span<const ExpertLayer> layers, int32_t num_places) {
  return num_places == 0 ? 0 : layers.size() * (kNumHotCounts + 1) * sizeof(int64_t);
}

// By bisection: the bytes grow with the places.
int32_t ExpertCache::places_in(size_t bytes, std::span<const ExpertLayer> layers) {
  int32_t low = 0;
  int32_t high = most_experts(layers);
  for (const ExpertLayer& layer : layers) high = std::min(high, layer.num_experts());
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    if (device_bytes(layers, middle) <= bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low < fewest_places(layers) ? 0 : low;
}

ExpertCache::ExpertCache(Device& device, Stream& compute, std::vector<ExpertLayer> layers,
                         int32_t num_places)
    : compute_(compute),
      layers_(std::move(layers)),
      num_places_(num_places),
      buffer_(device.allocate(device_bytes(layers_, num_places), MemoryKind::kDevice)),
      fetched_counts_(device.allocate(pinned_bytes(layers_, num_places), MemoryKind::kPinned)) {
  SLUICE_CHECK(num_places >= fewest_places(layers_), "{} places", num_places);
  std::fill_n(fetched_counts_.data(), fetched_counts_.size_bytes(), std::byte{0});
  Arena arena(buffer_.data(), buffer_.size_bytes());
  memory_ = cut(arena, layers_, num_places);
  fill_tables();
}

// The tables that turn a row's choice into a list of pages: an expert is block and page in one, and
// every list is full.
void ExpertCache::fill_tables() {
  const auto num_set_bytes = static_cast<size_t>(memory_.counts.bytes() - buffer_.data());
  compute_.fill(buffer_.data(), num_set_bytes, kEmptyHotPagesByte);
  compute_.fill(memory_.counts.bytes(), memory_.counts.num_bytes(), 0);
  const int64_t max_rows = memory_.block_ids.dim(0);
  const int64_t num_keys = memory_.block_ids.dim(1);
  std::vector<int32_t> ids(static_cast<size_t>(memory_.block_ids.num_elements()));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i % static_cast<size_t>(num_keys));
  }
  copy_values(compute_, ids, memory_.block_ids);
  copy_values(compute_,
              std::vector<int32_t>(static_cast<size_t>(max_rows), static_cast<int32_t>(num_keys)),
              memory_.kv_end);
  std::vector<int32_t> counts(static_cast<size_t>(memory_.page_count.num_elements()));
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = static_cast<int32_t>(i / static_cast<size_t>(max_rows));
  }
  copy_values(compute_, counts, memory_.page_count);
}

PackedExperts ExpertCache::places_of(const PackedExperts& experts, const TensorView& memory) const {
  PackedExperts places = experts;
  places.first.data = memory.bytes();
  places.num_experts = num_places_;
  return places;
}

ExpertSource ExpertCache::find(int32_t index, const TensorView& experts) {
  const ExpertLayer& layer = layers_[static_cast<size_t>(index)];
  const int64_t m = experts.dim(0);
  const int64_t k = experts.dim(1);
  const TensorView places = memory_.places.rows(0, m * k);
  const TensorView counts = memory_.counts.rows(index, 1).reshape({kNumHotCounts + 1});
  const TensorView full = memory_.page_count.rows(k, 1).reshape({memory_.page_count.dim(1)});
  find_hot_pages(compute_, {.sets = memory_.sets.rows(index, 1),
                            .pages = {.page_ids = experts.reshape({m, 1, 1, k}),
                                      .page_count = full.rows(0, m).reshape({m, 1, 1}),
                                      .page_tokens = 1,
                                      .num_entries = static_cast<int32_t>(k)},
                            .block_ids = memory_.block_ids.rows(0, m),
                            .kv_end = memory_.kv_end.rows(0, m),
                            .block_tokens = 1,
                            .places = places.reshape({m, 1, 1, k}),
                            .missing = memory_.missing,
                            .counts = counts.rows(0, kNumHotCounts),
                            .poisoned = {}});
  const ExpertSource source{
      .experts = places.reshape({m, k}),
      .gate_up = places_of(layer.gate_up, memory_.gate_up[static_cast<size_t>(index)]),
      .down = places_of(layer.down, memory_.down[static_cast<size_t>(index)])};
  fetch_experts(compute_, {.src = {layer.gate_up, layer.down},
                           .dst = {source.gate_up, source.down},
                           .missing = memory_.missing,
                           .num_bytes = counts.rows(kNumHotCounts, 1)});
  return source;
}

void ExpertCache::fetch_counts() {
  compute_.copy({.dst = fetched_counts_.data(),
                 .src = memory_.counts.bytes(),
                 .num_bytes = fetched_counts_.size_bytes()});
}

ExpertCounts ExpertCache::counts() const {
  const auto* counts = reinterpret_cast<const int64_t*>(fetched_counts_.data());
  ExpertCounts sum;
  for (size_t i = 0; i < layers_.size(); ++i, counts += kNumHotCounts + 1) {
    sum.num_hits += counts[kHotHits];
    sum.num_misses += counts[kHotMisses];
    sum.num_bytes += counts[kNumHotCounts];
  }
  return sum;
}

}  // namespace sluice
