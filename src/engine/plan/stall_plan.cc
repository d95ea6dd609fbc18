// The shortest span, and the time that it takes.
#include "engine/plan/stall_plan.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "engine/plan/machine_profile.h"
#include "engine/plan/plan_traits.h"

namespace sluice {
namespace {

// Operations of attention for one row and one token before it, all layers.
double attention_work(const ModelConfig& config) { return 2 * config.products_per_pair(); }

// Operations of matrix products for one row, all layers.
double product_work(const ModelConfig& config) { return 2 * config.products_per_row(); }

// Whole blocks, aligned, and not longer than a span may be.
int64_t min_span_tokens(const ModelConfig& config, const StallRates& rates,
                        const EnginePlan& plan) {
  const SchedulerLimits& limits = plan.passes.scheduler;
  int64_t tokens = plan.kv_layout.block.block_tokens;
  if (offloads(plan) && rates.link_bytes_per_second > 0) {
    tokens = std::max(tokens, tokens_that_hide_link(config, plan.kv_layout, rates));
  }
  const int64_t align = std::max(limits.span_align_tokens, limits.state_align_tokens);
  const int64_t longest = limits.prefill_chunk_tokens >= align
                              ? limits.prefill_chunk_tokens / align * align
                              : limits.prefill_chunk_tokens;
  return std::min((tokens + align - 1) / align * align, longest);
}

// The pause, as far as it is known before anything is measured.
std::string describe(const EngineOptions& options, const ModelConfig& config,
                     const StallRates& rates, const EnginePlan& plan) {
  const int64_t num_rows = plan.passes.scheduler.min_span_tokens;
  if (rates.attention_flops == 0) {
    return fmt::format(
        "max_stall_ms is {}: running sequences wait this long for a prefill pass, or for {} tokens "
        "of a prompt if these take longer",
        options.max_stall_ms, num_rows);
  }
  const auto length = static_cast<double>(plan.max_model_len);
  const double shortest_ms = 1000 * static_cast<double>(num_rows) *
                             (attention_work(config) * length + product_work(config)) /
                             rates.attention_flops;
  return fmt::format(
      "max_stall_ms is {}: running sequences wait up to about {:.1f} s for a prefill pass, of at "
      "least {} tokens",
      options.max_stall_ms, std::max<double>(options.max_stall_ms, shortest_ms) / 1000, num_rows);
}

}  // namespace

StallRates stall_rates(const EngineOptions& options, const Device& device) {
  const PlanTraits& traits = plan_traits(device.kind());
  StallRates rates{traits.link_bytes_per_second, traits.attention_flops};
  if (rates.link_bytes_per_second == 0) return rates;
  std::string trouble;  // choose_transfers has a note of it
  const auto profile =
      read_machine_profile(machine_profile_path(), gpu_id(options.device), &trouble);
  if (profile && profile->to_device_bytes_per_second > 0) {
    rates.link_bytes_per_second = profile->to_device_bytes_per_second;
  }
  return rates;
}

int64_t tokens_that_hide_link(const ModelConfig& config, const KvLayout& layout,
                              const StallRates& rates) {
  const double kv_bytes = static_cast<double>(layout.block_bytes_all_layers()) /
                          static_cast<double>(layout.block.block_tokens);
  const double transfer_s = kv_bytes / rates.link_bytes_per_second;
  const double attention_s = attention_work(config) / rates.attention_flops;
  return static_cast<int64_t>(std::ceil(transfer_s / attention_s));
}

void plan_stalls(const EngineOptions& options, const ModelConfig& config, const StallRates& rates,
                 EnginePlan& plan) {
  if (options.max_stall_ms == 0) return;
  std::vector<std::string>& notes = plan.memory.notes;
  if (plan.kv_offload == KvOffload::kLayerwise) {
    notes.push_back(
        fmt::format("max_stall_ms is {}, but a layer-wise pass cannot be cut: a long prompt holds "
                    "up the other requests until it is computed; kv_offload 'chunked' does not",
                    options.max_stall_ms));
    return;
  }
  SchedulerLimits& limits = plan.passes.scheduler;
  limits.max_stall_ns = int64_t{options.max_stall_ms} * 1'000'000;
  limits.min_span_tokens = min_span_tokens(config, rates, plan);
  notes.push_back(describe(options, config, rates, plan));
}

}  // namespace sluice
