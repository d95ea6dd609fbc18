// sluice-lab load: measures the time and the peak memory of loading a model. Runs on the main
// thread.
#include <chrono>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/table.h"
#include "cli/units.h"
#include "io/json_type.h"
#include "lab/commands.h"
#include "sluice/inspect.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using Clock = std::chrono::steady_clock;

// A value of /proc/self/status in bytes ("VmRSS", "VmHWM"); 0 if there is none.
double status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    double kib = 0;
    if (word == name + ":" && file >> kib) return kib * 1024;
  }
  return 0;
}

// Resets the kernel's peak of resident memory (VmHWM) to the current value.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// One load of the model.
struct Load {
  double load_seconds;
  double first_token_seconds;  // from the start of loading, with a prompt of one token
  double peak_bytes;           // peak of resident memory during the load, minus that before it
};

// Loads the model, generates one token and frees it. The first load may read the files from disk;
// later ones find them in the page cache.
Load measure_load(const EngineOptions& engine) {
  reset_peak();
  const double before = status_bytes("VmRSS");
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  LLM llm = load_llm(engine, false);
  Load load{};
  load.load_seconds = seconds();
  // Read before the first request, whose activations are no part of loading.
  load.peak_bytes = status_bytes("VmHWM") - before;
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 1;
  // Token 0 is in every vocabulary.
  llm.generate({std::vector<int32_t>{0}}, params);
  load.first_token_seconds = seconds();
  return load;
}

}  // namespace

int bench_load(const BenchLoadCommand& command) {
  // The bound of memory: a load cannot take less than the weights.
  const ModelSummary model = summarize_model(command.engine.model);
  const auto weight_bytes = static_cast<double>(model.weight_bytes);
  std::vector<double> loads, first_tokens, peaks;
  for (int32_t i = 0; i < command.repeats; ++i) {
    const Load load = measure_load(command.engine);
    loads.push_back(load.load_seconds);
    first_tokens.push_back(load.first_token_seconds);
    peaks.push_back(load.peak_bytes);
  }
  const Spread load = spread_of(loads), first_token = spread_of(first_tokens);
  const Spread peak = spread_of(peaks);
  Table table({"", "median", "least", "most"});
  const auto add = [&](const char* name, const Spread& spread, auto format) {
    table.add({name, format(spread.median), format(spread.min), format(spread.max)});
  };
  add("load", load, format_seconds);
  add("load to first token", first_token, format_seconds);
  add("peak memory of loading", peak, format_bytes);
  const std::string text = fmt::format(
      "load, {}\n\n{}\nbound: the weights alone are {}; the median peak is {:.0f} % of "
      "them\n",
      model_name(command.engine.model), table.to_string(), format_bytes(weight_bytes),
      100 * peak.median / weight_bytes);
  write_bench(command.json,
              {{"bench", "load"},
               {"model", model_name(command.engine.model)},
               {"weight_bytes", model.weight_bytes},
               {"load_seconds", spread_json(load)},
               {"first_token_seconds", spread_json(first_token)},
               {"peak_bytes", spread_json(peak)}},
              machine_name(command.engine), text);
  return kExitOk;
}

}  // namespace sluice::lab
