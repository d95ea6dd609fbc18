// sluice-lab tokenizer: measures the rate of encoding text on one thread. Runs on the main
// thread.
#include "tokenizer/tokenizer.h"

#include <chrono>
#include <filesystem>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "io/file.h"
#include "io/json_type.h"
#include "io/model_directory.h"
#include "io/model_file.h"
#include "lab/commands.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

int bench_tokenizer(const BenchTokenizerCommand& command) {
  const std::filesystem::path model_dir = ModelDirectory(command.engine.model).path();
  ProgressLine progress("reading the tokenizer");
  const auto unless_interrupted = [] {
    if (interrupted()) throw Interrupted();
  };
  const Tokenizer tokenizer = Tokenizer::load(model_dir);
  unless_interrupted();
  const std::filesystem::path file =
      command.file.empty() ? model_dir / "haystack.txt" : std::filesystem::path(command.file);
  const std::string text =
      command.file.empty() ? read_model_file(file) : read_user_file("--file", file);

  std::vector<double> rates;
  progress.set_task("encoding");
  size_t num_tokens = tokenizer.encode(text).size();  // warms up
  for (int32_t i = 0; i < command.repeats; ++i) {
    unless_interrupted();
    progress.update(static_cast<double>(i) / command.repeats);
    const auto start = std::chrono::steady_clock::now();
    num_tokens = tokenizer.encode(text).size();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    rates.push_back(static_cast<double>(text.size()) * 1e-6 / taken.count());
  }
  unless_interrupted();
  progress.clear();
  const Spread rate = spread_of(rates);
  // For the machine's name only: encoding uses one thread.
  EngineOptions one_thread;
  one_thread.num_threads = 1;
  write_bench(
      command.json,
      {{"bench", "tokenizer"},
       {"model", model_name(command.engine.model)},
       {"bytes", text.size()},
       {"tokens", num_tokens},
       {"megabytes_per_second", spread_json(rate)}},
      machine_name(one_thread),
      fmt::format("tokenizer, {}: {} of text, {} tokens\n{} MB/s on one core\n",
                  model_name(command.engine.model), format_bytes(static_cast<double>(text.size())),
                  num_tokens, format_spread(rate)));
  return kExitOk;
}

}  // namespace sluice::lab
