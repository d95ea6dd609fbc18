// sluice bench decode and prefill: measures tokens per second, and their share of what memory and
// arithmetic allow. Runs on the main thread.
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/bench/work.h"
#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "io/json_type.h"

namespace sluice::cli {
namespace {

// One batch at a time, with room for the longest request.
EngineOptions bench_engine(const BenchCommand& command, int64_t longest) {
  EngineOptions engine = command.engine;
  engine.enable_prefix_caching = false;  // every repeat must compute its whole prompt
  if (!engine.max_model_len) engine.max_model_len = longest;
  // Room for the batch alone: every prompt of it runs from the start.
  engine.max_num_seqs = std::max(command.batch, 1);
  return engine;
}

// What the engine did for one batch.
struct BatchCounts {
  double prefill_seconds = 0;
  double decode_seconds = 0;   // of decode steps, with their drafts
  int64_t num_passes = 0;      // of decode: its steps, and the passes that draft
  int64_t num_rows = 0;        // of the passes that decode or verify: one for each sequence
  ExpertObservations experts;  // of those in host memory
};

// Running totals; a sequence has one token for each step, and one for each draft that was kept.
BatchCounts totals_of(const LLM& llm) {
  const EngineStats stats = llm.stats();
  const Observations seen = llm.observations();
  return {.prefill_seconds = static_cast<double>(stats.prefill_ns) * 1e-9,
          .decode_seconds = static_cast<double>(stats.decode_ns) * 1e-9,
          .num_passes = seen.decode.num_steps + seen.draft.num_steps,
          .num_rows = -seen.speculation.num_accepted_tokens,
          .experts = seen.experts.value_or(ExpertObservations())};
}

// Draws one token with the probability `reuse` and all others alike: logits lie much closer
// together than the temperature, and a bias lifts the one above them.
void repeat_token(double reuse, int32_t vocab_size, SamplingParams& params) {
  constexpr double kTemperature = 5;
  constexpr double kMostBias = 100;
  constexpr int32_t kToken = 1;
  const double odds = reuse / std::max(1 - reuse, 1e-9) * (vocab_size - 1);
  params.temperature = kTemperature;
  const double bias = kTemperature * std::log(std::max(odds, 1e-9));
  params.logit_bias[kToken] = static_cast<float>(std::clamp(bias, -kMostBias, kMostBias));
}

// How tokens are chosen. Greedy, unless their experts are to repeat.
SamplingParams params_of(const BenchCommand& command, std::optional<double> expert_reuse,
                         int32_t vocab_size) {
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = command.output_tokens;
  if (expert_reuse) repeat_token(*expert_reuse, vocab_size, params);
  return params;
}

// What one batch computes.
struct BatchWork {
  int64_t prompt_tokens;
  int32_t vocab_size;
  int32_t repeat;
};

// Runs one batch and counts what the engine did.
BatchCounts measure_batch(LLM& llm, const BenchCommand& command, const BatchWork& batch,
                          const SamplingParams& params) {
  // Different prompts each time, so that no cache helps. Repeats are 65536 seeds apart, the largest
  // batch, so that no prompt occurs twice.
  const auto seed = static_cast<uint64_t>(command.engine.seed) + batch.repeat * uint64_t{65536};
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < command.batch; ++i) {
    prompts.emplace_back(random_prompt(batch.prompt_tokens, batch.vocab_size, seed + i));
  }
  GenerateOptions options;
  options.should_cancel = interrupted;
  const BatchCounts before = totals_of(llm);
  llm.generate(prompts, params, options);
  if (interrupted()) throw Interrupted();
  const BatchCounts after = totals_of(llm);
  // Prefill samples the first token of each sequence.
  const int64_t num_decoded = int64_t{command.batch} * (command.output_tokens - 1);
  return {.prefill_seconds = after.prefill_seconds - before.prefill_seconds,
          .decode_seconds = after.decode_seconds - before.decode_seconds,
          .num_passes = after.num_passes - before.num_passes,
          .num_rows = num_decoded + after.num_rows - before.num_rows,
          .experts = {.num_hits = after.experts.num_hits - before.experts.num_hits,
                      .num_misses = after.experts.num_misses - before.experts.num_misses}};
}

// Tokens and work (bytes or operations) per second of one batch.
struct Rates {
  double tokens;
  double work;  // in the unit of the bound
};

// One prompt length: spreads of both rates.
struct Row {
  int64_t prompt_tokens;
  Spread tokens;
  Spread work;
  std::optional<double> experts_found;  // share of those that rows chose; empty without a cache
};

std::optional<double> share_found(const ExpertObservations& experts) {
  const int64_t num_chosen = experts.num_hits + experts.num_misses;
  if (num_chosen == 0) return std::nullopt;
  return static_cast<double>(experts.num_hits) / static_cast<double>(num_chosen);
}

// Measures each prompt length: one batch to warm up, then `repeats` measured ones. The engine
// exists only in this function, so that the bounds are measured while its memory is free.
template <typename RatesOf>
std::vector<Row> measure_rows(const BenchCommand& command, int64_t longest, const Work& work,
                              std::optional<double> expert_reuse, RatesOf&& rates_of) {
  const SamplingParams params = params_of(command, expert_reuse, work.model.vocab_size);
  LLM llm = load_llm(bench_engine(command, longest), false);
  std::vector<Row> rows;
  ProgressLine progress("measuring");
  const auto total = static_cast<double>(command.prompt_lengths.size()) * (command.repeats + 1);
  double done = 0;
  for (const int64_t length : command.prompt_lengths) {
    std::vector<double> token_rates, work_rates;
    ExpertObservations experts;
    for (int32_t i = 0; i <= command.repeats; ++i) {
      progress.update(done++ / total, "prompts of " + format_tokens(length) + " tokens");
      const BatchCounts counts =
          measure_batch(llm, command, {length, work.model.vocab_size, i}, params);
      if (i == 0) continue;  // the batch to warm up
      experts.num_hits += counts.experts.num_hits;
      experts.num_misses += counts.experts.num_misses;
      const Rates rates = rates_of(static_cast<double>(length), counts);
      token_rates.push_back(rates.tokens);
      work_rates.push_back(rates.work);
    }
    rows.push_back({.prompt_tokens = length,
                    .tokens = spread_of(token_rates),
                    .work = spread_of(work_rates),
                    .experts_found = share_found(experts)});
  }
  write_timeline(llm, command.engine);
  return rows;
}

int64_t longest_prompt(const BenchCommand& command) {
  return *std::max_element(command.prompt_lengths.begin(), command.prompt_lengths.end());
}

// Texts and bound of a benchmark, printed around its rows.
struct Comparison {
  std::string name;         // "decode"
  std::string test;         // llama-bench's name of a row, {} for the prompt's tokens: "pp{}"
  std::string work_unit;    // "GB/s"
  std::string description;  // what was counted as work
  Bound bound;
};

// One line per prompt length: token rate, work rate and share of the bound.
void write_comparison(const BenchCommand& command, const Comparison& comparison,
                      const std::vector<Row>& rows) {
  Table table({"prompt", "llama-bench", "tok/s", comparison.work_unit, "of the bound"});
  double largest_share = 0;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    const double share = row.work.median / comparison.bound.per_second;
    largest_share = std::max(largest_share, share);
    // The name that llama-bench gives to the same measurement, for comparisons.
    const std::string test = fmt::format(fmt::runtime(comparison.test), row.prompt_tokens);
    table.add({format_tokens(row.prompt_tokens), test, format_spread(row.tokens),
               fmt::format("{:.2f}", row.work.median * 1e-9),
               fmt::format("{:.1f} %", 100 * share)});
    results.push_back({{"prompt_tokens", row.prompt_tokens},
                       {"llama_bench_test", test},
                       {"tokens_per_second", spread_json(row.tokens)},
                       {"work_per_second", spread_json(row.work)},
                       {"share_of_bound", share}});
    if (row.experts_found) results.back()["experts_found"] = *row.experts_found;
  }
  std::string found;  // of experts in host memory
  for (const Row& row : rows) {
    if (!row.experts_found) continue;
    found += fmt::format("after {}: {} of the chosen experts were on the device\n",
                         format_tokens(row.prompt_tokens), format_percent(*row.experts_found));
  }
  const std::string model = model_name(command.engine.model);
  const std::string text = fmt::format(
      "{}, {}{}, batch {}, {}: {}\nbound: {}, {:.1f} {}\n\n{}{}{}", comparison.name, model,
      describe_weights(command.engine), command.batch, format_repeats(command.repeats),
      comparison.description, comparison.bound.name, comparison.bound.per_second * 1e-9,
      comparison.work_unit, table.to_string(), found, describe_noise(largest_share));
  write_bench(command.json,
              {{"bench", comparison.name},
               {"model", model},
               {"load_format", load_format_name(command.engine.load_format)},
               {"batch", command.batch},
               {"output_tokens", command.output_tokens},
               {"work_unit", comparison.work_unit},
               {"bound", comparison.bound.name},
               {"bound_per_second", comparison.bound.per_second},
               {"results", results}},
              machine_name(command.engine), text);
}

}  // namespace

// Work in bytes: Work::decode_weight_bytes for each pass, drafts too, and each sequence's KV, at
// the mean context of the answer, for each step that decodes or verifies. What drafts read of it
// depends on their policy and is left out.
int bench_decode(const BenchDecodeCommand& command) {
  const Work work(command.engine);
  const Bound before = measure_memory_rate(command.engine);
  const auto kv_bytes = static_cast<double>(work.model.kv_bytes_per_token);
  const auto rates_of = [&](double prompt_tokens, const BatchCounts& counts) -> Rates {
    const double tokens = (command.output_tokens - 1.0) * command.batch;
    const double mean_context = prompt_tokens + command.output_tokens / 2.0;
    const double bytes = static_cast<double>(counts.num_passes) * work.decode_weight_bytes() +
                         static_cast<double>(counts.num_rows) * mean_context * kv_bytes;
    return {.tokens = tokens / counts.decode_seconds, .work = bytes / counts.decode_seconds};
  };
  const std::vector<Row> rows =
      measure_rows(command, longest_prompt(command) + command.output_tokens, work,
                   command.expert_reuse, rates_of);
  write_comparison(
      command,
      {.name = "decode",
       .test = fmt::format("tg{} @ d{{}}", command.output_tokens),
       .work_unit = "GB/s",
       .description = fmt::format("each step reads {} of weights and {} of KV per token of context",
                                  format_bytes(work.decode_weight_bytes()), format_bytes(kv_bytes)),
       .bound = larger(before, measure_memory_rate(command.engine))},
      rows);
  return kExitOk;
}

// Work of a prompt: Work::prefill_flops.
int bench_prefill(const BenchPrefillCommand& command) {
  const Work work(command.engine);
  const Bound before = measure_matmul_flops(command.engine);
  const auto rates_of = [&](double prompt_tokens, const BatchCounts& counts) -> Rates {
    return {.tokens = prompt_tokens * command.batch / counts.prefill_seconds,
            .work = work.prefill_flops(prompt_tokens) * command.batch / counts.prefill_seconds};
  };
  const std::vector<Row> rows =
      measure_rows(command, longest_prompt(command) + 1, work, std::nullopt, rates_of);
  write_comparison(command,
                   {.name = "prefill",
                    .test = "pp{}",
                    .work_unit = "GFLOP/s",
                    .description = "matrix products, causal attention and the last logits",
                    .bound = larger(before, measure_matmul_flops(command.engine))},
                   rows);
  return kExitOk;
}

}  // namespace sluice::cli
