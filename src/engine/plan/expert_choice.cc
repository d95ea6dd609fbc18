// The ring has two layers in flight; the cache has the rest of what experts get.
#include "engine/plan/expert_choice.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "engine/plan/memory_fit.h"

namespace sluice {
namespace {

// One that compute reads and one on its way. More do not help: a layer's copy either hides behind a
// layer's compute, or the link is the bound.
constexpr int32_t kRingSlots = 2;

// Bytes of experts that one row chooses, in all layers.
size_t bytes_per_row(const std::vector<ExpertLayer>& layers) {
  size_t sum = 0;
  for (const ExpertLayer& layer : layers) {
    sum += static_cast<size_t>(layer.num_chosen) * layer.expert_bytes();
  }
  return sum;
}

size_t bytes_of_all(const std::vector<ExpertLayer>& layers) {
  size_t sum = 0;
  for (const ExpertLayer& layer : layers) sum += layer.bytes();
  return sum;
}

int32_t places_asked_for(const PlanInput& input) {
  const std::vector<ExpertLayer>& layers = input.weights.experts;
  const size_t given = *input.options.experts_device_bytes;
  const int32_t num_places = ExpertCache::places_in(given, layers);
  if (given == 0 || num_places > 0) return num_places;
  const size_t least = ExpertCache::device_bytes(layers, ExpertCache::fewest_places(layers));
  fail(ErrorCode::kInvalidArgument,
       "experts_device_bytes is {}, but the experts that one token chooses take {} in all layers; "
       "give at least {}, or 0 for no cache",
       readable_bytes(given), readable_bytes(least), least);
}

// Half of what is left, but the experts of one row where half is less.
int32_t default_places(const PlanInput& input, size_t bytes_left) {
  const std::vector<ExpertLayer>& layers = input.weights.experts;
  const int32_t fewest = ExpertCache::fewest_places(layers);
  const size_t least = ExpertCache::device_bytes(layers, fewest);
  if (input.traits().shares_host_memory || bytes_left / 2 < least) {
    return least <= bytes_left ? fewest : 0;
  }
  return ExpertCache::places_in(bytes_left / 2, layers);
}

}  // namespace

void check_expert_options(const EngineOptions& options, const Weights::Plan& weights) {
  const bool has_none = weights.experts.empty();
  if (options.weights_offload == WeightsOffload::kExperts && has_none) {
    fail(ErrorCode::kInvalidArgument,
         "weights_offload is 'experts', but the model has none; leave it out");
  }
  if (!options.experts_device_bytes) return;
  if (has_none) {
    fail(ErrorCode::kInvalidArgument,
         "experts_device_bytes is {}, but the model has no experts; leave it out",
         readable_bytes(*options.experts_device_bytes));
  }
  if (options.weights_offload == WeightsOffload::kOff) {
    fail(ErrorCode::kInvalidArgument,
         "experts_device_bytes is {}, but weights_offload 'off' keeps all experts on the device; "
         "leave it out, or take weights_offload 'experts'",
         readable_bytes(*options.experts_device_bytes));
  }
}

HostExpertSizes choose_ring(const PlanInput& input) {
  if (input.options.weights_offload != WeightsOffload::kExperts) return {};
  const auto num_layers = static_cast<int32_t>(input.weights.experts.size());
  return {.num_slots = std::min(kRingSlots, num_layers)};
}

int32_t choose_places(const PlanInput& input, size_t bytes_left) {
  if (input.options.weights_offload != WeightsOffload::kExperts) return 0;
  if (input.options.experts_device_bytes) return places_asked_for(input);
  return default_places(input, bytes_left);
}

int32_t grow_places(const PlanInput& input, const HostExpertSizes& sizes, size_t bytes_left) {
  const bool is_fixed =
      input.options.experts_device_bytes.has_value() || input.traits().shares_host_memory;
  if (!sizes.on_host() || is_fixed) return sizes.num_places;
  const std::vector<ExpertLayer>& layers = input.weights.experts;
  const size_t bytes = ExpertCache::device_bytes(layers, sizes.num_places) + bytes_left;
  return std::max(sizes.num_places, ExpertCache::places_in(bytes, layers));
}

ExpertBytes expert_bytes(const PlanInput& input, const HostExpertSizes& sizes) {
  if (!sizes.on_host()) return {};
  const std::vector<ExpertLayer>& layers = input.weights.experts;
  return {.ring = ExpertRing::device_bytes(layers, sizes.num_slots),
          .cache = ExpertCache::device_bytes(layers, sizes.num_places),
          .cache_counts = ExpertCache::pinned_bytes(layers, sizes.num_places)};
}

void note_experts(const std::vector<ExpertLayer>& layers, double link_bytes_per_second,
                  EnginePlan& plan) {
  if (!plan.experts.on_host()) return;
  const int32_t num_places = plan.experts.num_places;
  std::vector<std::string>& notes = plan.memory.notes;
  if (num_places > 0) {
    notes.push_back(fmt::format(
        "{} of {} experts of each layer have a place on the device; passes of up to {} rows fetch "
        "what is missing, longer ones stream all layers",
        num_places, layers.front().num_experts(), HostExperts::cached_rows(num_places, layers)));
  } else {
    notes.push_back("no expert has a place on the device: every pass streams all layers");
  }
  if (link_bytes_per_second == 0) return;
  const auto all = static_cast<double>(bytes_of_all(layers));
  const auto of_row = static_cast<double>(bytes_per_row(layers));
  notes.push_back(fmt::format(
      "at {:.1f} GB/s to the device, the experts of all layers arrive in {:.2f} s, which bounds a "
      "pass that streams them, and those of one row in {:.1f} ms, which bounds a decode step "
      "without hits",
      link_bytes_per_second / 1e9, all / link_bytes_per_second,
      of_row / link_bytes_per_second * 1e3));
}

}  // namespace sluice
