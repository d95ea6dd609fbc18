// Measures by differences of the engine's counters around one prompt.
#include "cli/bench/kv_run.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "engine/plan/engine_plan.h"
#include "io/json_type.h"

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

  explicit Counts(const LlmEngine& engine) {
    const Observations seen = engine.observations();
    const EngineStats stats = engine.stats();
    prefill = count_of(seen.prefill, stats.prefill_ns);
    decode = count_of(seen.decode, stats.decode_ns);
  }
};

// The mean of values that are there; empty without one.
std::optional<double> mean_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// One phase of all runs of a row.
class PhaseRuns {
 public:
  // Adds one run, as the difference of two totals.
  void add(const PhaseCount& before, const PhaseCount& after) {
    seconds_.push_back(after.seconds - before.seconds);
    h2d_bytes_ = after.h2d_bytes - before.h2d_bytes;  // the same in every run
    d2h_bytes_ = after.d2h_bytes - before.d2h_bytes;
  }
  // Adds what an engine has seen in all its runs.
  void add(const PhaseObservations& seen) {
    if (const auto density = selected_in(seen)) densities_.push_back(*density);
  }

  PhaseResult result(double num_tokens) const {
    std::vector<double> rates;
    for (const double seconds : seconds_) rates.push_back(num_tokens / seconds);
    return {.tokens_per_second = spread_of(rates),
            .num_tokens = num_tokens,
            .seconds = spread_of(seconds_).median,
            .h2d_bytes = h2d_bytes_,
            .d2h_bytes = d2h_bytes_,
            .density_selected = mean_of(densities_)};
  }

 private:
  std::vector<double> seconds_, densities_;
  double h2d_bytes_ = 0, d2h_bytes_ = 0;
};

// All runs of a row, in one engine or two.
class RowRuns {
 public:
  void add(const Counts& before, const Counts& after) {
    prefill_.add(before.prefill, after.prefill);
    decode_.add(before.decode, after.decode);
  }
  // Adds the observations of an engine whose runs are over.
  void add(const Observations& seen) {
    kv_offload_ = seen.kv_offload;
    prefill_.add(seen.prefill);
    decode_.add(seen.decode);
    device_peak_bytes_ = std::max(device_peak_bytes_, static_cast<double>(seen.device_peak_bytes));
    pinned_peak_bytes_ = std::max(pinned_peak_bytes_, static_cast<double>(seen.pinned_peak_bytes));
    for (size_t layer = 0; layer < seen.captured_mass.size(); ++layer) {
      const MassObservations& mass = seen.captured_mass[layer];
      num_audited_rows_ += mass.num_rows;
      if (mass.captured) masses_[layer].push_back(*mass.captured);
    }
  }

  KvResult result(const KvWork& work) const {
    return {.kv_offload = kv_offload_,
            .prefill = prefill_.result(static_cast<double>(work.prompt_tokens)),
            // Prefill samples the first token.
            .decode = decode_.result(work.decode_tokens - 1),
            .captured = captured(),
            .device_peak_bytes = device_peak_bytes_,
            .pinned_peak_bytes = pinned_peak_bytes_};
  }

 private:
  std::optional<CapturedMass> captured() const {
    std::vector<double> layers;
    for (const auto& [layer, masses] : masses_) layers.push_back(*mean_of(masses));
    if (layers.empty()) return {};
    return CapturedMass{.mean = *mean_of(layers),
                        .lowest_layer = *std::min_element(layers.begin(), layers.end()),
                        .num_rows = num_audited_rows_};
  }

  std::string kv_offload_;
  PhaseRuns prefill_, decode_;
  std::map<size_t, std::vector<double>> masses_;  // by layer, of each engine
  int64_t num_audited_rows_ = 0;
  double device_peak_bytes_ = 0, pinned_peak_bytes_ = 0;
};

// The prompt of a run: another one for each, so that no cache helps.
std::vector<int32_t> prompt_of(const KvRow& row, int32_t vocab_size, int32_t run) {
  const KvWork& work = row.work;
  if (work.text == nullptr) {
    return random_prompt(work.prompt_tokens, vocab_size,
                         static_cast<uint64_t>(row.engine.seed) + run * uint64_t{65536});
  }
  constexpr size_t kStep = 1000;  // tokens between the beginnings of two prompts
  std::vector<int32_t> ids;
  for (size_t at = static_cast<size_t>(run) * kStep; std::ssize(ids) < work.prompt_tokens; ++at) {
    ids.push_back((*work.text)[at % work.text->size()]);
  }
  return ids;
}

// One run: a prompt, greedy decoding to the full length. Errors: Interrupted.
void run_prompt(LlmEngine& engine, const KvRow& row, int32_t run) {
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = row.work.decode_tokens;
  const PassWatch watch{.should_cancel = interrupted,
                        .min_rows = engine.plan().passes.min_watched_rows};
  engine.add_request(prompt_of(row, engine.config().vocab_size, run), params);
  while (engine.has_unfinished()) {
    if (interrupted()) throw Interrupted();
    engine.step(&watch);
  }
}

std::unique_ptr<PolicyPair> policies_of(const KvRow& row) {
  return row.own_policies ? row.own_policies(row.engine) : make_policies(row.engine);
}

// Consecutive runs of every row, each row's in one engine.
struct Visit {
  int32_t first_run = 0;
  int32_t num_runs = 0;
  bool warms_up = true;  // one run before, which does not count
  bool is_reversed = false;
};

std::vector<Visit> visits_of(int32_t repeats) {
  if (repeats == 0) return {{.first_run = 0, .num_runs = 1, .warms_up = false}};
  const int32_t forward = (repeats + 1) / 2;
  std::vector<Visit> visits = {{.first_run = 1, .num_runs = forward}};
  if (repeats > forward) {
    visits.push_back(
        {.first_run = 1 + forward, .num_runs = repeats - forward, .is_reversed = true});
  }
  return visits;
}

// Loads the row's engine and runs its prompts. Errors: those of LLM; Interrupted.
void measure(const KvRow& row, const Visit& visit, RowRuns* runs) {
  const std::unique_ptr<LlmEngine> engine = load_engine(row.engine, policies_of(row));
  if (visit.warms_up) run_prompt(*engine, row, 0);
  for (int32_t i = 0; i < visit.num_runs; ++i) {
    const Counts before(*engine);
    run_prompt(*engine, row, visit.first_run + i);
    runs->add(before, Counts(*engine));
  }
  runs->add(engine->observations());
}

// Measures every row that fits its plan.
void measure_rows(std::vector<KvRow>* rows) {
  // All rows of a command have the same number of repeats.
  const std::vector<Visit> visits = visits_of(rows->front().work.repeats);
  std::vector<RowRuns> runs(rows->size());
  ProgressLine progress("measuring");
  double done = 0;
  for (const Visit& visit : visits) {
    for (size_t i = 0; i < rows->size(); ++i) {
      const size_t place = visit.is_reversed ? rows->size() - 1 - i : i;
      KvRow& row = (*rows)[place];
      progress.update(done++ / static_cast<double>(rows->size() * visits.size()), row_label(row));
      if (!row.does_not_fit.empty()) continue;
      try {
        measure(row, visit, &runs[place]);
      } catch (const Error& error) {
        // The plan fitted, but other programs have taken memory since.
        if (error.code() != ErrorCode::kDoesNotFit) throw;
        row.does_not_fit = error.message();
      }
    }
  }
  for (size_t i = 0; i < rows->size(); ++i) {
    KvRow& row = (*rows)[i];
    if (row.does_not_fit.empty()) row.result = runs[i].result(row.work);
  }
}

}  // namespace

double PhaseResult::link_share(const LinkRates& link) const {
  return std::max(h2d_bytes / link.to_device.median, d2h_bytes / link.to_host.median) / seconds;
}

void set_mode(KvOffload mode, EngineOptions* engine) {
  engine->kv.offload = mode;
  if (mode == KvOffload::kLayerwise) engine->prefill_chunk_tokens.reset();
}

void size_for_one_request(int64_t longest, const ModelSummary& model, EngineOptions* engine) {
  engine->enable_prefix_caching = false;  // every run must compute its whole prompt
  engine->max_num_seqs = 1;
  if (engine->kv.offload == KvOffload::kOff)
    engine->kv.device_bytes.reset();  // resident KV is all on the device; the option is refused
  if (!engine->max_model_len) engine->max_model_len = longest;
  // The default pass is at most as long as the longest request; a chunk from a list may be longer
  // and needs a longer pass.
  if (!engine->max_num_batched_tokens &&
      engine->prefill_chunk_tokens.value_or(0) > *engine->max_model_len) {
    engine->max_num_batched_tokens = engine->prefill_chunk_tokens;
  }
  if (!engine->kv.host_bytes) {
    // Whole blocks for the longest request and no more: pinning takes time.
    const int64_t block = engine->kv.block_size.value_or(kOffloadedBlockTokens);
    const int64_t num_blocks = (*engine->max_model_len + block - 1) / block;
    engine->kv.host_bytes = static_cast<size_t>(num_blocks * block) * model.kv_bytes_per_token;
  }
}

LinkRates measure_rows_and_link(std::vector<KvRow>* rows, const ModelSummary& model) {
  for (KvRow& row : *rows) {
    size_for_one_request(row.work.prompt_tokens + row.work.decode_tokens, model, &row.engine);
    const MemoryPlan plan = plan_memory(row.engine);
    // `inspect` would print the same plan; peak_cell compares the run with it.
    row.planned_device_bytes = static_cast<double>(plan.device_used_bytes());
    if (row.own_policy_bytes) {
      row.planned_device_bytes +=
          static_cast<double>(row.own_policy_bytes(row.engine, plan.block_size));
    }
    if (!plan.fits) row.does_not_fit = plan.remedy;
  }
  // All rows run on the same device.
  const EngineOptions& any = rows->front().engine;
  const LinkRates before = measure_link(any);
  measure_rows(rows);
  return larger(before, measure_link(any));
}

int exit_code_for(const std::vector<KvRow>& rows) {
  const bool any = std::any_of(rows.begin(), rows.end(),
                               [](const KvRow& row) { return row.result.has_value(); });
  return any ? kExitOk : kExitDoesNotFit;
}

std::string row_label(const KvRow& row) {
  return fmt::format("{}, {}{}{}", format_tokens(row.work.prompt_tokens),
                     kv_offload_name(row.engine.kv.offload), row.policy.empty() ? "" : ", ",
                     row.policy);
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
  if (repeats == 1) return "the second run";
  return fmt::format("median of {} runs after one to warm up, rows in both orders", repeats);
}

std::string ratio_cell(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.2f} x", *ratio) : "-";
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
