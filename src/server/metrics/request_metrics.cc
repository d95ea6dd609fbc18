#include "server/metrics/request_metrics.h"

#include "server/metrics/bucket_bounds.h"

namespace sluice::metrics {
namespace {

constexpr std::array<std::string_view, kNumOutcomes> kOutcomeNames = {"stop", "length", "abort",
                                                                      "error"};

}  // namespace

std::string_view outcome_name(Outcome outcome) {
  return kOutcomeNames.at(static_cast<size_t>(outcome));
}

RequestMetrics::RequestMetrics(int64_t max_model_len)
    : first_token_(first_token_bounds()),
      token_interval_(token_interval_bounds()),
      mean_token_interval_(token_interval_bounds()),
      whole_(latency_bounds()),
      queue_(latency_bounds()),
      prefill_(latency_bounds()),
      decode_(latency_bounds()),
      inference_(latency_bounds()),
      num_prompt_tokens_(token_bounds(max_model_len)),
      num_generated_tokens_(token_bounds(max_model_len)),
      choices_(choice_bounds()),
      max_tokens_(token_bounds(max_model_len)) {}

TokenTotals RequestMetrics::totals() const {
  return {.num_computed = computed_tokens_.value(),
          .num_cached = cached_device_tokens_.value() + cached_host_tokens_.value(),
          .num_stored = stored_tokens_.value(),
          .num_missed = missed_tokens_.value(),
          .num_generated = generated_tokens_.value()};
}

void RequestMetrics::append_counters(Exposition& page) const {
  const TokenTotals tokens = totals();
  page.counter("vllm:prompt_tokens_total", "Prompt tokens, computed or cached.",
               tokens.num_prompt());
  page.counter("vllm:generation_tokens_total", "Generated tokens.", tokens.num_generated);
  page.counter("vllm:prompt_tokens_cached_total",
               "Prompt tokens that were found by prefix caching or in the KV store.",
               tokens.num_cached + tokens.num_stored);
  page.counter("vllm:prompt_tokens_cached_by_source_total",
               "Prompt tokens that were found and not computed, by the memory that held them.");
  page.sample(static_cast<double>(cached_device_tokens_.value()), Labels().add("source", "device"));
  page.sample(static_cast<double>(cached_host_tokens_.value()), Labels().add("source", "host"));
  page.sample(static_cast<double>(stored_tokens_.value()), Labels().add("source", "disk"));
  page.counter("vllm:prefix_cache_queries_total",
               "Prompt tokens that were looked up in the prefix cache.", tokens.num_queried());
  page.counter("vllm:prefix_cache_hits_total",
               "Prompt tokens that were looked up in the prefix cache and found.",
               tokens.num_cached);
  page.counter("vllm:request_success_total", "Requests that have ended, by the reason.");
  for (size_t i = 0; i < kNumOutcomes; ++i) {
    page.sample(static_cast<double>(ended_[i].value()),
                Labels().add("finished_reason", kOutcomeNames[i]));
  }
}

void RequestMetrics::append_to(Exposition& page) const {
  append_counters(page);
  page.gauge("sluice:prefill_remaining_tokens",
             "Prompt tokens of open requests that are neither computed nor cached yet.");
  page.sample(static_cast<double>(prefill_remaining_tokens_.value()));
  struct Row {
    std::string_view name;
    std::string_view help;
    const Histogram& histogram;
  };
  const std::array rows = {
      Row{"vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
          first_token_},
      Row{"vllm:inter_token_latency_seconds", "From a token of a request to the next.",
          token_interval_},
      Row{"vllm:request_time_per_output_token_seconds",
          "The mean time between the tokens of a request.", mean_token_interval_},
      Row{"vllm:e2e_request_latency_seconds", "From a request's arrival to its end.", whole_},
      Row{"vllm:request_queue_time_seconds", "From the queue to the first work on a request.",
          queue_},
      Row{"vllm:request_prefill_time_seconds", "From the first work to the first token.", prefill_},
      Row{"vllm:request_decode_time_seconds", "From the first token to the last.", decode_},
      Row{"vllm:request_inference_time_seconds", "From the first work to the last token.",
          inference_},
      Row{"vllm:request_prompt_tokens", "Prompt tokens of a request.", num_prompt_tokens_},
      Row{"vllm:request_generation_tokens", "Generated tokens of a request.",
          num_generated_tokens_},
      Row{"vllm:request_params_n", "The parameter n of a request.", choices_},
      Row{"vllm:request_params_max_tokens", "The parameter max_tokens of a request.", max_tokens_},
  };
  for (const Row& row : rows) page.histogram(row.name, row.help, row.histogram.read());
}

}  // namespace sluice::metrics
