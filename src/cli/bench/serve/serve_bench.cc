// sluice bench serve: loads a server with one scenario and compares it with what it promises. Runs
// on the main thread.
#include <array>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/scenario.h"
#include "cli/commands.h"
#include "cli/engine_session.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// One of scenario.h.
using Measure = ScenarioReport (*)(const BenchServeCommand& command);

// In the order of ServeScenario.
constexpr std::array<Measure, kServeScenarioNames.size()> kScenarios = {
    bench_streams, bench_beside, bench_shared, bench_cancel, bench_answer, bench_mixed};

// The model of a running server is not known here.
std::string subject(const BenchServeCommand& command) {
  if (!command.url.empty()) return command.url;
  if (!command.uds.empty()) return command.uds;
  return model_name(command.engine.model) + describe_weights(command.engine);
}

}  // namespace

// Poor numbers are results, too: the status is 0 unless something failed.
int bench_serve(const BenchServeCommand& command) {
  const auto scenario = static_cast<size_t>(command.scenario);
  const ScenarioReport report = kScenarios.at(scenario)(command);
  const std::string name(kServeScenarioNames.at(scenario));
  nlohmann::ordered_json json = {{"bench", "serve"},
                                 {"scenario", name},
                                 {"subject", subject(command)},
                                 {"repeats", command.repeats}};
  json.update(report.json);
  write_bench(command.json, std::move(json), machine_name(command.engine),
              fmt::format("serve {}, {}\n{}", name, subject(command), report.text));
  return kExitOk;
}

}  // namespace sluice::cli
