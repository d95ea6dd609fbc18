// Measures by differences of the engine's counters around one prompt.
#include "cli/bench/kv_run.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "sluice/llm.h"

namespace sluice::cli {
namespace {

constexpr int32_t kOffloadedBlockTokens = 1024;  // the engine's default with offload

// Running totals of one phase.
struct PhaseCount {
  double seconds = 0;
  double h2d_bytes = 0;
  double d2h_bytes = 0;
};

// Bytes summed over layers; `phase_ns` is the time of all its steps.
PhaseCount count_of(const PhaseObservations& phase, int64_t phase_ns) {
  PhaseCount count{.seconds = static_cast<double>(phase_ns) * 1e-9};
  for (const LayerObservations& layer : phase.layers) {
    count.h2d_bytes += static_cast<double>(layer.h2d_bytes);
    count.d2h_bytes += static_cast<double>(layer.d2h_bytes);
  }
  return count;
}

// The density of the phase; else the mean over layers; empty if any layer's is unknown.
std::optional<double> selected_in(const PhaseObservations& phase) {
  if (phase.density_selected) return phase.density_selected;
  double sum = 0;
  for (const LayerObservations& layer : phase.layers) {
    if (!layer.density_selected) return {};
    sum += *layer.density_selected;
  }
  if (phase.layers.empty()) return {};
  return sum / static_cast<double>(phase.layers.size());
}

// Running totals of both phases, read from an engine.
struct Counts {
  PhaseCount prefill, decode;

  explicit Counts(const LLM& llm) {
    const Observations seen = llm.observations();
    const EngineStats stats = llm.stats();
    prefill = count_of(seen.prefill, stats.prefill_ns);
    decode = count_of(seen.decode, stats.decode_ns);
  }
};

// One phase of all runs of a row.
class PhaseRuns {
 public:
  explicit PhaseRuns(double num_tokens) : num_tokens_(num_tokens) {}

  // Adds one run, as the difference of two totals.
  void add(const PhaseCount& before, const PhaseCount& after) {
    seconds_.push_back(after.seconds - before.seconds);
    rates_.push_back(num_tokens_ / seconds_.back());
    h2d_bytes_ = after.h2d_bytes - before.h2d_bytes;  // the same in every run
    d2h_bytes_ = after.d2h_bytes - before.d2h_bytes;
  }

  PhaseResult result(const PhaseObservations& seen) const {
    return {.tokens_per_second = spread_of(rates_),
            .num_tokens = num_tokens_,
            .seconds = spread_of(seconds_).median,
            .h2d_bytes = h2d_bytes_,
            .d2h_bytes = d2h_bytes_,
            .density_selected = selected_in(seen)};
  }

 private:
  double num_tokens_;
  std::vector<double> seconds_, rates_;
  double h2d_bytes_ = 0, d2h_bytes_ = 0;
};

// One run: a random prompt, greedy decoding to the full length. Errors: Interrupted.
void run_prompt(LLM& llm, const KvWork& work, int32_t vocab_size, uint64_t seed) {
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = work.decode_tokens;
  GenerateOptions options;
  options.should_cancel = interrupted;
  llm.generate({random_prompt(work.prompt_tokens, vocab_size, seed)}, params, options);
  if (interrupted()) throw Interrupted();
}

// Options that every row shares, and sizes for exactly one request where none were given.
void complete_options(const KvWork& work, const ModelSummary& model, EngineOptions* engine) {
  engine->enable_prefix_caching = false;  // every run must compute its whole prompt
  engine->max_num_seqs = 1;
  if (engine->kv.offload == KvOffload::kOff)
    engine->kv.device_bytes.reset();  // resident KV is all on the device; the option is refused
  if (!engine->max_model_len) engine->max_model_len = work.prompt_tokens + work.decode_tokens;
  // The default pass is at most as long as the longest request; a chunk from a list may be longer
  // and needs a longer pass.
  const int64_t longest = *engine->max_model_len;
  if (!engine->max_num_batched_tokens && engine->prefill_chunk_tokens.value_or(0) > longest) {
    engine->max_num_batched_tokens = engine->prefill_chunk_tokens;
  }
  if (!engine->kv.host_bytes) {
    // Whole blocks for the longest request and no more: pinning takes time.
    const int64_t block = engine->kv.block_size.value_or(kOffloadedBlockTokens);
    const int64_t num_blocks = (longest + block - 1) / block;
    engine->kv.host_bytes = static_cast<size_t>(num_blocks * block) * model.kv_bytes_per_token;
  }
}

// Loads the row's engine and runs its prompts. Errors: those of LLM; Interrupted.
KvResult measure(const KvRow& row, int32_t vocab_size) {
  const KvWork& work = row.work;
  LLM llm = load_llm(row.engine, false);
  PhaseRuns prefill(static_cast<double>(work.prompt_tokens));
  // Prefill samples the first token.
  PhaseRuns decode(work.decode_tokens - 1);
  for (int32_t i = 0; i <= work.repeats; ++i) {
    const Counts before(llm);
    // A different prompt for each run, so that no cache helps.
    run_prompt(llm, work, vocab_size, static_cast<uint64_t>(row.engine.seed) + i * uint64_t{65536});
    // The first run warms up, unless it is the only one.
    if (i == 0 && work.repeats > 0) continue;
    const Counts after(llm);
    prefill.add(before.prefill, after.prefill);
    decode.add(before.decode, after.decode);
  }
  const Observations seen = llm.observations();
  return {.kv_offload = seen.kv_offload,
          .prefill = prefill.result(seen.prefill),
          .decode = decode.result(seen.decode),
          .device_peak_bytes = static_cast<double>(seen.device_peak_bytes),
          .pinned_peak_bytes = static_cast<double>(seen.pinned_peak_bytes)};
}

// Measures every row that fits its plan.
void measure_rows(std::vector<KvRow>* rows, int32_t vocab_size) {
  ProgressLine progress("measuring");
  double done = 0;
  for (KvRow& row : *rows) {
    progress.update(done++ / static_cast<double>(rows->size()), row_label(row));
    if (!row.does_not_fit.empty()) continue;
    try {
      row.result = measure(row, vocab_size);
    } catch (const Error& error) {
      // The plan fitted, but other programs have taken memory since.
      if (error.code() != ErrorCode::kDoesNotFit) throw;
      row.does_not_fit = error.message();
    }
  }
}

}  // namespace

double PhaseResult::link_share(const LinkRates& link) const {
  return std::max(h2d_bytes / link.to_device.median, d2h_bytes / link.to_host.median) / seconds;
}

LinkRates measure_rows_and_link(std::vector<KvRow>* rows, const ModelSummary& model) {
  for (KvRow& row : *rows) {
    complete_options(row.work, model, &row.engine);
    const MemoryPlan plan = plan_memory(row.engine);
    // `inspect` would print the same plan; peak_cell compares the run with it.
    row.planned_device_bytes = static_cast<double>(plan.device_used_bytes());
    if (!plan.fits) row.does_not_fit = plan.remedy;
  }
  // All rows run on the same device.
  const EngineOptions& any = rows->front().engine;
  const LinkRates before = measure_link(any);
  measure_rows(rows, model.vocab_size);
  return larger(before, measure_link(any));
}

int exit_code_for(const std::vector<KvRow>& rows) {
  const bool any = std::any_of(rows.begin(), rows.end(),
                               [](const KvRow& row) { return row.result.has_value(); });
  return any ? kExitOk : kExitDoesNotFit;
}

std::string row_label(const KvRow& row) {
  const bool is_sparse = row.engine.sparse.policy != "full";
  return fmt::format("{}, {}{}{}", format_tokens(row.work.prompt_tokens),
                     kv_offload_name(row.engine.kv.offload), is_sparse ? ", " : "",
                     is_sparse ? row.engine.sparse.policy : "");
}

std::string unfit_rows_text(const std::vector<KvRow>& rows) {
  std::string text;
  for (const KvRow& row : rows) {
    if (row.does_not_fit.empty()) continue;
    text += fmt::format("{} does not fit: {}\n", row_label(row), row.does_not_fit);
  }
  return text;
}

nlohmann::ordered_json phase_json(const PhaseResult& phase, const LinkRates& link) {
  return {{"tokens_per_second", spread_json(phase.tokens_per_second)},
          {"tokens", phase.num_tokens},
          {"seconds", phase.seconds},
          {"h2d_bytes", phase.h2d_bytes},
          {"d2h_bytes", phase.d2h_bytes},
          {"link_bytes_per_second", phase.link_rate()},
          {"share_of_link", phase.link_share(link)}};
}

std::string percent_or_dash(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
}

nlohmann::ordered_json number_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

std::string describe_repeats(int32_t repeats) {
  if (repeats == 0) return "the first run";
  return repeats == 1 ? "the second run"
                      : fmt::format("median of {} runs after one to warm up", repeats);
}

std::string rate_cell(const Spread& rate) {
  // A spread of one run would repeat the median.
  if (rate.min < rate.max) return format_spread(rate);
  return fmt::format("{:.{}f}", rate.median, rate.median >= 100 ? 0 : 2);
}

std::string peak_cell(const KvRow& row) {
  const double peak_bytes = row.result->device_peak_bytes;
  return fmt::format("{} {:5.1f} %", format_bytes(peak_bytes),
                     100 * peak_bytes / row.planned_device_bytes);
}

std::string link_cell(const PhaseResult& phase, const LinkRates& link) {
  return fmt::format("{:.2f} {:5.1f} %", phase.link_rate() * 1e-9, 100 * phase.link_share(link));
}

}  // namespace sluice::cli
