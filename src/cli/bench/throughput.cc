// sluice bench throughput: measures many requests of mixed lengths at once, like a server's load.
// Runs on the main thread.
#include <chrono>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/request_sizes.h"
#include "cli/bench/work.h"
#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "io/json_type.h"

namespace sluice::cli {
namespace {

// Reads lines of "prompt_tokens output_tokens". Errors: kInvalidArgument naming the line.
std::vector<RequestSize> read_sizes(const std::string& path) {
  std::istringstream lines(read_user_file("--requests", path));
  std::vector<RequestSize> sizes;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    std::istringstream words(line);
    RequestSize size;
    std::string rest;
    // `rest` catches a third word.
    if (!(words >> size.prompt_tokens >> size.output_tokens) || (words >> rest) ||
        size.prompt_tokens < 1 || size.output_tokens < 1) {
      fail(ErrorCode::kInvalidArgument,
           "--requests: line {} of {} is '{}', not the two numbers 'prompt_tokens output_tokens'",
           sizes.size() + 1, path, line);
    }
    sizes.push_back(size);
  }
  if (sizes.empty()) fail(ErrorCode::kInvalidArgument, "--requests: {} is empty", path);
  return sizes;
}

// Sums and maxima over all requests.
struct Totals {
  double prompt_tokens = 0;
  double output_tokens = 0;
  double prefill_flops = 0;    // Work::prefill_flops
  double decode_kv_bytes = 0;  // Work::decode_kv_bytes
  int32_t longest_output = 0;  // tokens
};

Totals total_of(const std::vector<RequestSize>& sizes, const Work& work) {
  Totals totals;
  for (const RequestSize& size : sizes) {
    totals.prompt_tokens += size.prompt_tokens;
    totals.output_tokens += size.output_tokens;
    totals.prefill_flops += work.prefill_flops(size.prompt_tokens);
    totals.decode_kv_bytes += work.decode_kv_bytes(size.prompt_tokens, size.output_tokens);
    totals.longest_output = std::max(totals.longest_output, size.output_tokens);
  }
  return totals;
}

// A lower bound of the time in seconds: prefill at the rate of large products; then as many steps
// as the longest answer has tokens, each of which reads all weights; and each request's context
// once per token.
double floor_seconds(const Totals& totals, const Work& work, const Bound& flops,
                     const Bound& memory) {
  const double decode_bytes =
      (totals.longest_output - 1) * work.decode_weight_bytes() + totals.decode_kv_bytes;
  return totals.prefill_flops / flops.per_second + decode_bytes / memory.per_second;
}

// Wall time in seconds of all requests together. Errors: Interrupted.
double measure_once(LLM& llm, const std::vector<RequestSize>& sizes, int32_t vocab_size,
                    uint64_t seed) {
  const GenerateWork work = make_generate_work(sizes, vocab_size, seed);
  ProgressLine line("generating");
  GenerateOptions options;
  options.should_cancel = interrupted;
  options.on_progress = [&](const Progress& progress) {
    line.update(static_cast<double>(progress.num_finished) /
                static_cast<double>(progress.num_requests));
  };
  const auto start = std::chrono::steady_clock::now();
  // Only this call is timed; making the prompts is not.
  llm.generate(work.prompts, work.params, options);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  if (interrupted()) throw Interrupted();
  return taken.count();
}

// Seconds of each measured repeat.
std::vector<double> measure(const BenchThroughputCommand& command,
                            const std::vector<RequestSize>& sizes, const Work& work) {
  EngineOptions engine = command.engine;
  engine.enable_prefix_caching = false;  // every repeat must compute its prompts
  if (!engine.max_model_len) engine.max_model_len = longest_request(sizes);
  LLM llm = load_llm(engine, false);
  const auto seed = static_cast<uint64_t>(command.engine.seed);
  std::vector<double> seconds;
  // The first run warms up: kernels are loaded and graphs captured.
  for (int32_t i = 0; i <= command.repeats; ++i) {
    const double taken =
        measure_once(llm, sizes, work.model.vocab_size, seed + i * uint64_t{65536});
    if (i > 0 || command.repeats == 0) seconds.push_back(taken);
  }
  return seconds;
}

}  // namespace

int bench_throughput(const BenchThroughputCommand& command) {
  const Work work(command.engine);
  const std::vector<RequestSize> sizes =
      command.requests.empty()
          ? draw_sizes({.num_requests = command.num_requests,
                        .least_tokens = command.least_tokens,
                        .most_tokens = command.most_tokens,
                        .seed = static_cast<uint64_t>(command.engine.seed) + 1})
          : read_sizes(command.requests);
  const Totals totals = total_of(sizes, work);
  const Bound flops = measure_matmul_flops(command.engine);
  const Bound memory = measure_memory_rate(command.engine);
  const Spread seconds = spread_of(measure(command, sizes, work));
  const double floor = floor_seconds(totals, work, flops, memory);
  const double output_rate = totals.output_tokens / seconds.median;
  const double total_rate = (totals.prompt_tokens + totals.output_tokens) / seconds.median;
  const std::string model = model_name(command.engine.model);
  const std::string text = fmt::format(
      "throughput, {}{}: {} requests, {} tokens in and {} out\n"
      "{:.0f} generated tok/s, {:.0f} tok/s in all; {} s\n"
      "floor {}: {:.2e} operations at {:.2e}/s ({}), then {} reads of {} of weights and {} of KV "
      "at {:.0f} GB/s ({}); {:.1f} % of it reached\n{}",
      model, describe_weights(command.engine), sizes.size(), totals.prompt_tokens,
      totals.output_tokens, output_rate, total_rate, format_spread(seconds), format_seconds(floor),
      totals.prefill_flops, flops.per_second, flops.name, totals.longest_output - 1,
      format_bytes(work.decode_weight_bytes()), format_bytes(totals.decode_kv_bytes),
      memory.per_second * 1e-9, memory.name, 100 * floor / seconds.median,
      describe_noise(floor / seconds.median));
  write_bench(command.json,
              {{"bench", "throughput"},
               {"model", model},
               {"load_format", load_format_name(command.engine.load_format)},
               {"num_requests", sizes.size()},
               {"prompt_tokens", totals.prompt_tokens},
               {"output_tokens", totals.output_tokens},
               {"seconds", spread_json(seconds)},
               {"output_tokens_per_second", output_rate},
               {"tokens_per_second", total_rate},
               {"floor_seconds", floor},
               {"flops_bound_per_second", flops.per_second},
               {"memory_bound_per_second", memory.per_second}},
              machine_name(command.engine), text);
  return kExitOk;
}

}  // namespace sluice::cli
