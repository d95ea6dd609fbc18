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
                          int32_t vocab_size, int32_t repeat) {
  // Different prompts each time: real ones differ, and caches of any kind must not help.
  const auto seed = static_cast<uint64_t>(command.engine.seed) + repeat * uint64_t{65536};
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < command.batch; ++i) {
    prompts.emplace_back(random_prompt(prompt_tokens, vocab_size, seed + i));
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

// Tokens and work (bytes or operations) per second of one batch.
struct Rates {
  double tokens;
  double work;
};

struct Row {
  int64_t prompt_tokens;
  Spread tokens;
  Spread work;
};

// Measures each prompt length: one batch to warm up, then `repeats` that count.
template <typename RatesOf>
std::vector<Row> measure_rows(LLM& llm, const BenchCommand& command, int32_t vocab_size,
                              RatesOf&& rates_of) {
  std::vector<Row> rows;
  ProgressLine progress("measuring");
  const auto total = static_cast<double>(command.prompt_lengths.size()) * (command.repeats + 1);
  double done = 0;
  for (const int64_t length : command.prompt_lengths) {
    std::vector<double> tokens, work;
    for (int32_t i = 0; i <= command.repeats; ++i) {
      progress.update(done++ / total, "prompts of " + format_tokens(length) + " tokens");
      const EngineStats stats = measure_batch(llm, command, length, vocab_size, i);
      if (i == 0) continue;
      const Rates rates = rates_of(static_cast<double>(length), stats);
      tokens.push_back(rates.tokens);
      work.push_back(rates.work);
    }
    rows.push_back({.prompt_tokens = length, .tokens = spread_of(tokens), .work = spread_of(work)});
  }
  return rows;
}

int64_t longest_prompt(const BenchCommand& command) {
  return *std::max_element(command.prompt_lengths.begin(), command.prompt_lengths.end());
}

// What is printed around the rows. `bound` is the larger of two measurements, before and after, so
// that a disturbance of the machine does not flatter the result.
struct Comparison {
  std::string name;         // "decode"
  std::string work_unit;    // "GB/s"
  std::string bound_name;   // "DRAM read rate"
  std::string description;  // of what was counted
  double bound = 0;         // per second
};

void write_comparison(const BenchCommand& command, const Comparison& comparison,
                      const std::vector<Row>& rows) {
  Table table({"prompt", "tok/s", comparison.work_unit, "of the bound"});
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    const double share = row.work.median / comparison.bound;
    table.add({format_tokens(row.prompt_tokens), format_spread(row.tokens),
               fmt::format("{:.2f}", row.work.median * 1e-9),
               fmt::format("{:.1f} %", 100 * share)});
    results.push_back({{"prompt_tokens", row.prompt_tokens},
                       {"tokens_per_second", spread_json(row.tokens)},
                       {"work_per_second", spread_json(row.work)},
                       {"share_of_bound", share}});
  }
  const std::string model = model_name(command.engine.model);
  const std::string text = fmt::format(
      "{}, {}, batch {}, {} repeats: {}\nbound: {}, {:.1f} {}\n\n{}", comparison.name, model,
      command.batch, command.repeats, comparison.description, comparison.bound_name,
      comparison.bound * 1e-9, comparison.work_unit, table.to_string());
  write_bench(command.json,
              {{"bench", comparison.name},
               {"model", model},
               {"batch", command.batch},
               {"output_tokens", command.output_tokens},
               {"work_unit", comparison.work_unit},
               {"bound", comparison.bound_name},
               {"bound_per_second", comparison.bound},
               {"results", results}},
              machine_name(command.engine), text);
}

}  // namespace

int bench_decode(const BenchDecodeCommand& command) {
  require_cpu(command.engine);
  const Work work(command.engine.model);
  const int threads = resolve_threads(command.engine.num_threads);
  const double bound_before = measure_dram_read_bytes_per_second(threads);
  LLM llm = load_llm(bench_engine(command, longest_prompt(command) + command.output_tokens), false);
  const auto kv_bytes = static_cast<double>(work.model.kv_bytes_per_token);

  const auto rates_of = [&](double prompt_tokens, const EngineStats& stats) -> Rates {
    // The first token comes from prefill, so there is a decode step less than tokens.
    const double steps = command.output_tokens - 1;
    const double mean_context = prompt_tokens + command.output_tokens / 2.0;
    const double step_bytes = work.decode_weight_bytes() + command.batch * mean_context * kv_bytes;
    const double seconds = static_cast<double>(stats.decode_ns) * 1e-9;
    return {.tokens = steps * command.batch / seconds, .work = steps * step_bytes / seconds};
  };
  const std::vector<Row> rows = measure_rows(llm, command, work.model.vocab_size, rates_of);
  write_timeline(llm, command.engine);
  const double bound = std::max(bound_before, measure_dram_read_bytes_per_second(threads));
  write_comparison(
      command,
      {.name = "decode",
       .work_unit = "GB/s",
       .bound_name = fmt::format("DRAM read rate with {} threads", threads),
       .description = fmt::format("each step reads {} of weights and {} of KV per token of context",
                                  format_bytes(work.decode_weight_bytes()), format_bytes(kv_bytes)),
       .bound = bound},
      rows);
  return kExitOk;
}

int bench_prefill(const BenchPrefillCommand& command) {
  require_cpu(command.engine);
  const Work work(command.engine.model);
  const int threads = resolve_threads(command.engine.num_threads);
  const double bound_before = measure_matmul_flops(threads);
  LLM llm = load_llm(bench_engine(command, longest_prompt(command) + 1), false);

  const auto rates_of = [&](double prompt_tokens, const EngineStats& stats) -> Rates {
    const double seconds = static_cast<double>(stats.prefill_ns) * 1e-9;
    return {.tokens = prompt_tokens * command.batch / seconds,
            .work = work.prefill_flops(prompt_tokens) * command.batch / seconds};
  };
  const std::vector<Row> rows = measure_rows(llm, command, work.model.vocab_size, rates_of);
  write_timeline(llm, command.engine);
  const double bound = std::max(bound_before, measure_matmul_flops(threads));
  write_comparison(command,
                   {.name = "prefill",
                    .work_unit = "GFLOP/s",
                    .bound_name = fmt::format(
                        "Sluice's own bf16 product of 2048 x 2048 x 2048 with {} threads", threads),
                    .description = "matrix products, causal attention and the last logits",
                    .bound = bound},
                   rows);
  return kExitOk;
}

}  // namespace sluice::cli
