// Scenario answer: whether a token of a long answer costs the same at its end as at its start.
//
// The model's own work grows with the context, unless a policy bounds what decode reads (full+
// streaming). Therefore the same answer by LLM::generate is beside it, part by part, and the
// engine's thread, whose time has no kernels of a device in it.
#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/bench_server.h"
#include "cli/bench/serve/scenario.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"

namespace sluice::cli {
namespace {

// Eighths show a bend as well as a slope; each still has thousands of tokens.
constexpr size_t kParts = 8;
constexpr int64_t kPromptTokens = 16;
// A little less than the 32K tokens of context that many models have, for the prompt's sake.
constexpr int64_t kOutputTokens = 32'000;

// One value for each round.
using Rounds = std::vector<double>;

// By part of the answer, then by round.
struct Answer {
  std::vector<Rounds> server = std::vector<Rounds>(kParts);         // seconds a token
  std::vector<Rounds> generate = std::vector<Rounds>(kParts);       // empty for a running server
  std::vector<Rounds> engine_thread = std::vector<Rounds>(kParts);  // seconds a step
  int64_t num_equal_texts = 0;
  int64_t num_events = 0;  // of the last round
  int64_t output_tokens = 0;
};

// `seconds` has one value for each part.
void add_parts(const std::vector<double>& seconds, std::vector<Rounds>* parts) {
  for (size_t i = 0; i < kParts; ++i) (*parts)[i].push_back(seconds.at(i));
}

// The same answer without service and server. The callback of each step stands for the arrival of
// an event. Returns the text.
std::string run_generate(const EngineOptions& engine, const CompletionRequest& request,
                         Answer* answer) {
  LLM llm = load_llm(engine, false);
  std::vector<Completion::Arrival> arrivals;
  GenerateOptions options;
  options.should_cancel = interrupted;
  options.on_output = [&](size_t, const RequestOutput& output) {
    if (output.token_ids.empty()) return;
    arrivals.push_back({LoadClock::now(), std::ssize(output.token_ids)});
  };
  const SamplingParams params{.temperature = kBenchTemperature,
                              .seed = request.seed,
                              .max_tokens = static_cast<int32_t>(request.max_tokens),
                              .ignore_eos = true};
  const std::vector<RequestOutput> outputs = llm.generate({request.prompt}, params, options);
  if (interrupted()) throw Interrupted();
  add_parts(token_seconds_by_part(arrivals, kParts), &answer->generate);
  return outputs.at(0).text;
}

// Events may hold several tokens, so the last parts may end early by their count; their times of
// the engine's thread are then of fewer steps.
void watch_engine(BenchServer& server, const LoadRequest& request, int64_t max_tokens,
                  Answer* answer) {
  request.wait_for_events(2);
  EngineWork before = *server.engine_work();
  for (size_t part = 0; part < kParts; ++part) {
    request.wait_for_events(static_cast<size_t>(max_tokens) * (part + 1) / kParts);
    const EngineWork now = *server.engine_work();
    answer->engine_thread[part].push_back((now - before).seconds_per_step());
    before = now;
  }
}

// A server of its own for each round, as run_generate loads an engine: both begin with an empty
// cache. Returns the text.
std::string run_server(const BenchServeCommand& command, const EngineOptions& engine,
                       const CompletionRequest& request, Answer* answer) {
  BenchServer server(command, engine);
  const LoadRequest sent = server.client().post(kCompletionsPath, completion_json(request));
  if (server.service() != nullptr) watch_engine(server, sent, request.max_tokens, answer);
  const Completion completion = wait_for_completion(sent, "the answer");
  add_parts(token_seconds_by_part(completion.arrivals, kParts), &answer->server);
  answer->num_events = std::ssize(completion.arrivals);
  return completion.texts.at(0);
}

// Each round has a prompt and a seed of its own, the same for both ways. The context is as long as
// the answer needs, unless it is given: a longer one would only take memory.
Answer measure(const BenchServeCommand& command) {
  const int32_t vocab_size = prompt_vocab_size(command);
  EngineOptions engine = command.engine;
  Answer answer;
  answer.output_tokens = command.output_tokens.value_or(kOutputTokens);
  if (!engine.max_model_len) engine.max_model_len = kPromptTokens + answer.output_tokens;
  ProgressLine line("measuring a long answer");
  for (int32_t round = 0; round < command.repeats; ++round) {
    line.update(static_cast<double>(round) / command.repeats);
    const auto seed = static_cast<uint64_t>(command.engine.seed) + static_cast<uint64_t>(round);
    const CompletionRequest request{.prompt = random_prompt(kPromptTokens, vocab_size, seed),
                                    .max_tokens = answer.output_tokens,
                                    .seed = static_cast<int64_t>(seed),
                                    .return_token_ids = true};
    std::string own, served;
    alternate(
        round,
        [&] {
          if (!command.is_running_server()) own = run_generate(engine, request, &answer);
        },
        [&] { served = run_server(command, engine, request, &answer); });
    answer.num_equal_texts += own == served ? 1 : 0;
  }
  return answer;
}

// Medians by part; empty if nothing was measured.
std::vector<double> medians(const std::vector<Rounds>& parts) {
  std::vector<double> values;
  for (const Rounds& rounds : parts) {
    if (!rounds.empty()) values.push_back(spread_of(rounds).median);
  }
  return values;
}

// Of the last part to the first, the number that should be 1.
double drift(const std::vector<double>& values) { return values.back() / values.front(); }

std::string us(double seconds) { return fmt::format("{:.0f} us", 1e6 * seconds); }

}  // namespace

// The drift of the ratios is what remains of the server's own after the model's is divided out.
ScenarioReport bench_answer(const BenchServeCommand& command) {
  const Answer answer = measure(command);
  const std::vector<double> server = medians(answer.server), own = medians(answer.generate),
                            thread = medians(answer.engine_thread);
  Table table(
      {"part", "server, a token", "generate", "server / generate", "engine's thread a step"});
  std::vector<double> ratios;
  for (size_t i = 0; i < kParts; ++i) {
    if (!own.empty()) ratios.push_back(server[i] / own[i]);
    table.add({fmt::format("{} of {}", i + 1, kParts), us(server[i]), own.empty() ? "" : us(own[i]),
               own.empty() ? "" : format_percent(ratios[i]), thread.empty() ? "" : us(thread[i])});
  }
  std::string text = fmt::format(
      "one answer of {} tokens in {} events\n{}last part over first: server {}",
      answer.output_tokens, answer.num_events, table.to_string(), format_percent(drift(server)));
  nlohmann::ordered_json json = {{"output_tokens", answer.output_tokens},
                                 {"num_events", answer.num_events},
                                 {"server_seconds_per_token", server},
                                 {"server_drift", drift(server)}};
  if (!own.empty()) {
    text +=
        fmt::format(", generate {}, server over generate {}, engine's thread {}; {} texts equal",
                    format_percent(drift(own)), format_percent(drift(ratios)),
                    format_percent(drift(thread)), answer.num_equal_texts);
    json["generate_seconds_per_token"] = own;
    json["engine_thread_seconds_per_step"] = thread;
    json["generate_drift"] = drift(own);
    json["drift_over_generate"] = drift(ratios);
    json["engine_thread_drift"] = drift(thread);
    json["num_equal_texts"] = answer.num_equal_texts;
  }
  return {.text = text + "\n", .json = std::move(json)};
}

}  // namespace sluice::cli
