// sluice bench decode and prefill: tokens per second, and how near they are to what the machine's
// memory and arithmetic allow.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/measure.h"
#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "device/cpu/memory_bandwidth.h"
#include "sluice/inspect.h"

namespace sluice::cli {
namespace {

constexpr double kBytesPerElement = 2;  // bf16 weights and KV

// Sizes that the bounds are counted from.
struct Work {
  ModelSummary model;
  double table_elements;  // of one embedding table

  explicit Work(const std::string& model_dir)
      : model(summarize_model(model_dir)),
        table_elements(static_cast<double>(model.vocab_size) * model.hidden_size) {}

  // Weights that a decode step reads: all but the rows of a table that is only looked up.
  double decode_weight_bytes() const {
    const auto all = static_cast<double>(model.num_parameters);
    return kBytesPerElement * (model.tied_embeddings ? all : all - table_elements);
  }
  // The products of every prompt token (two operations for each weight outside the tables), the
  // logits of the last one, and causal attention: half of all pairs, two products each.
  double prefill_flops(double num_tokens) const {
    const auto all = static_cast<double>(model.num_parameters);
    const double layers = all - table_elements * (model.tied_embeddings ? 1 : 2);
    const double pairs = num_tokens * (num_tokens + 1) / 2;
    const double attention = 4.0 * model.num_layers * model.num_q_heads * model.head_dim * pairs;
    return 2 * layers * num_tokens + 2 * table_elements + attention;
  }
};

void require_cpu(const EngineOptions& engine) {
  if (engine.device == "cpu" || engine.device == "auto") return;
  fail(ErrorCode::kInvalidArgument,
       "--device: '{}' has no bound to compare with yet; benchmarks run on cpu", engine.device);
}

EngineOptions bench_engine(const BenchCommand& command, int64_t longest) {
  EngineOptions engine = command.engine;
  engine.device = "cpu";
  engine.enable_prefix_caching = false;  // a repeat has to compute what it measures
  if (engine.max_model_len == 0) engine.max_model_len = longest;
  engine.max_num_seqs = std::max(command.batch, 1);
  return engine;
}

// The change of the engine's counters over one batch of `batch` prompts.
EngineStats measure_batch(LLM& llm, const BenchCommand& command, int64_t prompt_tokens,
                          int32_t vocab_size, uint64_t repeat) {
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < command.batch; ++i) {
    prompts.emplace_back(random_prompt(prompt_tokens, vocab_size, repeat * 65536 + i));
  }
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = command.output_tokens;
  GenerateOptions options;
  options.should_cancel = interrupted;
  const EngineStats before = llm.stats();
  llm.generate(prompts, params, options);
  if (interrupted()) throw Interrupted();
  EngineStats after = llm.stats();
  after.num_steps -= before.num_steps;
  after.prefill_ns -= before.prefill_ns;
  after.decode_ns -= before.decode_ns;
  return after;
}

// Runs `measure` for each repeat after one that warms up; shows progress.
template <typename Measure>
std::vector<EngineStats> repeat(const BenchCommand& command, const std::string& task,
                                Measure&& measure) {
  ProgressLine progress(task);
  std::vector<EngineStats> all;
  for (int32_t i = 0; i <= command.repeats; ++i) {
    progress.update(static_cast<double>(i) / (command.repeats + 1));
    const EngineStats stats = measure(static_cast<uint64_t>(i));
    if (i > 0) all.push_back(stats);
  }
  return all;
}

}  // namespace

int bench_decode(const BenchDecodeCommand& command) {
  require_cpu(command.engine);
  const Work work(command.engine.model);
  const int threads = resolve_threads(command.engine.num_threads);
  const int64_t longest =
      *std::max_element(command.prompt_lengths.begin(), command.prompt_lengths.end()) +
      command.output_tokens;
  const double bound = measure_dram_read_bytes_per_second(threads);
  LLM llm = load_llm(bench_engine(command, longest), false);

  Table table({"prompt", "tok/s", "GB/s", "of the DRAM read rate"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int64_t length : command.prompt_lengths) {
    const auto stats = repeat(command, "decoding", [&](uint64_t i) {
      return measure_batch(llm, command, length, work.model.vocab_size, i);
    });
    // The first token comes from prefill, so there is a decode step less than tokens.
    const double steps = command.output_tokens - 1;
    const double context =
        static_cast<double>(length) + static_cast<double>(command.output_tokens) / 2;
    const double step_bytes =
        work.decode_weight_bytes() +
        command.batch * context * static_cast<double>(work.model.kv_bytes_per_token);
    std::vector<double> token_rates, byte_rates;
    for (const EngineStats& one : stats) {
      const double seconds = static_cast<double>(one.decode_ns) * 1e-9;
      token_rates.push_back(steps * command.batch / seconds);
      byte_rates.push_back(steps * step_bytes / seconds);
    }
    const Spread tokens = spread_of(token_rates), bytes = spread_of(byte_rates);
    table.add({format_tokens(length), format_spread(tokens),
               fmt::format("{:.2f}", bytes.median * 1e-9),
               fmt::format("{:.1f} %", 100 * bytes.median / bound)});
    rows.push_back({{"prompt_tokens", length},
                    {"batch", command.batch},
                    {"output_tokens", command.output_tokens},
                    {"tokens_per_second", spread_json(tokens)},
                    {"bytes_per_second", spread_json(bytes)},
                    {"share_of_bound", bytes.median / bound}});
  }
  const std::string text = fmt::format(
      "decode, {}, batch {}: {} of weights and {} of KV per token of context\n"
      "bound: DRAM read rate with {} threads, {:.1f} GB/s\n\n{}",
      model_name(command.engine.model), command.batch, format_bytes(work.decode_weight_bytes()),
      format_bytes(static_cast<double>(work.model.kv_bytes_per_token)), threads, bound * 1e-9,
      table.to_string());
  write_bench(command.json,
              {{"bench", "decode"},
               {"model", model_name(command.engine.model)},
               {"bound", "dram_read"},
               {"bound_bytes_per_second", bound},
               {"results", rows}},
              machine_name(command.engine), text);
  return kExitOk;
}

int bench_prefill(const BenchPrefillCommand& command) {
  require_cpu(command.engine);
  const Work work(command.engine.model);
  const int threads = resolve_threads(command.engine.num_threads);
  const int64_t longest =
      *std::max_element(command.prompt_lengths.begin(), command.prompt_lengths.end()) + 1;
  const double bound = measure_matmul_flops(threads);
  LLM llm = load_llm(bench_engine(command, longest), false);

  Table table({"prompt", "tok/s", "GFLOP/s", "of the matrix product"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int64_t length : command.prompt_lengths) {
    const auto stats = repeat(command, "prefill of " + format_tokens(length), [&](uint64_t i) {
      return measure_batch(llm, command, length, work.model.vocab_size, i);
    });
    std::vector<double> token_rates, flop_rates;
    for (const EngineStats& one : stats) {
      const double seconds = static_cast<double>(one.prefill_ns) * 1e-9;
      token_rates.push_back(static_cast<double>(length) * command.batch / seconds);
      flop_rates.push_back(work.prefill_flops(static_cast<double>(length)) * command.batch /
                           seconds);
    }
    const Spread tokens = spread_of(token_rates), flops = spread_of(flop_rates);
    table.add({format_tokens(length), format_spread(tokens),
               fmt::format("{:.1f}", flops.median * 1e-9),
               fmt::format("{:.1f} %", 100 * flops.median / bound)});
    rows.push_back({{"prompt_tokens", length},
                    {"batch", command.batch},
                    {"tokens_per_second", spread_json(tokens)},
                    {"flops_per_second", spread_json(flops)},
                    {"share_of_bound", flops.median / bound}});
  }
  const std::string text = fmt::format(
      "prefill, {}, batch {}\nbound: bf16 matrix product 2048^3 with {} threads, {:.1f} GFLOP/s\n"
      "\n{}",
      model_name(command.engine.model), command.batch, threads, bound * 1e-9, table.to_string());
  write_bench(command.json,
              {{"bench", "prefill"},
               {"model", model_name(command.engine.model)},
               {"bound", "matmul_2048"},
               {"bound_flops_per_second", bound},
               {"results", rows}},
              machine_name(command.engine), text);
  return kExitOk;
}

}  // namespace sluice::cli
