// sluice bench serve: what HTTP costs when many streams decode at once. Runs on the main thread.
//
// Three ways of the same work: LLM::generate, as in `bench throughput`; the service, whose sinks
// drop what they get; and HTTP. The difference of the first two is the service's, that of the last
// two the server's and, on a CPU device, that of the cores that server and client take.
#include <algorithm>
#include <ctime>
#include <latch>
#include <memory>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/bench_server.h"
#include "cli/bench/serve/completion.h"
#include "cli/bench/serve/quantile.h"
#include "cli/bench/serve/request_sizes.h"
#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "io/json_type.h"

namespace sluice::cli {
namespace {

// Of the warm-up: tokens of a request are this many times fewer.
constexpr int32_t kWarmupShare = 8;

// The same for all rounds; only the ids of the prompts differ.
struct StreamsWork {
  std::vector<RequestSize> sizes;
  std::vector<RequestSize> warmup;
  int32_t vocab_size = 0;
  EngineOptions engine;
};

// One run of all requests.
struct Run {
  double seconds = 0;  // from the first request to the last token
  std::optional<EngineWork> engine;
  double client_cpu_seconds = 0;
  std::vector<std::string> texts;
  std::vector<double> first_token_seconds;
  std::vector<double> gap_seconds;
};

// The runs of one way, by round.
struct Way {
  std::vector<double> tokens_per_second;
  std::vector<double> step_seconds;  // of the engine's thread, if it is in this process

  void add(const Run& run, int64_t num_tokens) {
    tokens_per_second.push_back(static_cast<double>(num_tokens) / run.seconds);
    if (run.engine) step_seconds.push_back(run.engine->seconds_per_step());
  }
};

// All rounds.
struct Streams {
  Way generate, service, server;
  std::vector<double> shares;          // of generate's rate that the server reaches, by round
  std::vector<double> service_shares;  // and the service
  std::vector<double> added_seconds;   // of the engine's thread for a step, server over generate
  std::vector<double> first_token_seconds, gap_seconds;
  double client_share = 0;  // of one core, in the last round
  int64_t num_equal_texts = 0;
};

// The seeds of requests are given: all ways then generate the same tokens.
GenerateWork seeded_work(const std::vector<RequestSize>& sizes, int32_t vocab_size, uint64_t seed) {
  GenerateWork work = make_generate_work(sizes, vocab_size, seed);
  for (size_t i = 0; i < work.params.size(); ++i) {
    work.params[i].seed = static_cast<int64_t>(seed + i);
  }
  return work;
}

// The lengths are those of `bench throughput` with the same options. The warm-up has the same mix
// of lengths, so that it meets the same sizes of batches.
StreamsWork make_streams_work(const BenchServeCommand& command) {
  StreamsWork work{.vocab_size = prompt_vocab_size(command), .engine = command.engine};
  work.sizes = draw_sizes({.num_requests = command.num_requests,
                           .least_tokens = command.least_tokens,
                           .most_tokens = command.most_tokens,
                           .seed = static_cast<uint64_t>(command.engine.seed) + 1});
  for (const RequestSize& size : work.sizes) {
    work.warmup.push_back({.prompt_tokens = 1 + size.prompt_tokens / kWarmupShare,
                           .output_tokens = 1 + size.output_tokens / kWarmupShare});
  }
  work.engine.enable_prefix_caching = false;  // as in bench throughput
  if (!work.engine.max_model_len) work.engine.max_model_len = longest_request(work.sizes);
  return work;
}

// Of the calling thread, which is the engine's in LLM::generate.
double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Only the call of generate is measured. Its thread is this one.
Run run_generate(LLM& llm, const GenerateWork& work) {
  GenerateOptions options;
  options.should_cancel = interrupted;
  const EngineWork before{thread_cpu_seconds(), llm.stats().num_steps};
  const LoadTime start = LoadClock::now();
  const std::vector<RequestOutput> outputs = llm.generate(work.prompts, work.params, options);
  Run run{.seconds = seconds_between(start, LoadClock::now())};
  run.engine = EngineWork{thread_cpu_seconds(), llm.stats().num_steps} - before;
  if (interrupted()) throw Interrupted();
  for (const RequestOutput& output : outputs) run.texts.push_back(output.text);
  return run;
}

// Outputs reach a sink and are dropped there, as fast as a sink can be. The latch is shared: the
// last sink may still use it when this function returns.
Run run_service(BenchServer& server, const GenerateWork& work) {
  const auto left = std::make_shared<std::latch>(std::ssize(work.prompts));
  const EngineWork before = *server.engine_work();
  const LoadTime start = LoadClock::now();
  for (size_t i = 0; i < work.prompts.size(); ++i) {
    server.service()->submit(
        {.prompt = std::get<std::vector<int32_t>>(work.prompts[i]), .params = work.params[i]},
        [left](const RequestEvent& event) {
          if (std::holds_alternative<RequestEnd>(event)) left->count_down();
        });
  }
  left->wait();
  return {.seconds = seconds_between(start, LoadClock::now()),
          .engine = *server.engine_work() - before};
}

std::vector<std::string> bodies_of(const GenerateWork& work) {
  std::vector<std::string> bodies;
  for (size_t i = 0; i < work.prompts.size(); ++i) {
    bodies.push_back(completion_json({.prompt = std::get<std::vector<int32_t>>(work.prompts[i]),
                                      .max_tokens = work.params[i].max_tokens,
                                      .seed = work.params[i].seed.value_or(0)}));
  }
  return bodies;
}

// Bodies are made before, and answers read after what is measured.
Run run_server(BenchServer& server, const GenerateWork& work) {
  const std::vector<std::string> bodies = bodies_of(work);
  const std::optional<EngineWork> before = server.engine_work();
  const double client_before = server.client().cpu_seconds();
  std::vector<LoadRequest> requests;
  const LoadTime start = LoadClock::now();
  for (const std::string& body : bodies) {
    requests.push_back(server.client().post(kCompletionsPath, body));
  }
  for (const LoadRequest& request : requests) request.wait();
  Run run;
  run.client_cpu_seconds = server.client().cpu_seconds() - client_before;
  if (before) run.engine = *server.engine_work() - *before;
  LoadTime last = start;
  for (const LoadRequest& request : requests) {
    const Completion completion = wait_for_completion(request, "a stream");
    const std::vector<LoadTime>& arrivals = completion.arrivals;
    run.texts.push_back(completion.text);
    last = std::max(last, completion.last_byte);
    if (arrivals.empty()) continue;  // an answer whose tokens have no text
    run.first_token_seconds.push_back(completion.first_token_seconds());
    for (size_t i = 1; i < arrivals.size(); ++i) {
      run.gap_seconds.push_back(seconds_between(arrivals[i - 1], arrivals[i]));
    }
  }
  run.seconds = seconds_between(start, last);
  return run;
}

// Rounds have other prompts, as the repeats of `bench throughput`. The round after the last is the
// warm-up's.
uint64_t seed_of(const BenchServeCommand& command, int32_t round) {
  return static_cast<uint64_t>(command.engine.seed) + static_cast<uint64_t>(round) * 65536;
}

// Calls both, in an order that changes with each round: a drift of the machine's speed then does
// not favour one of them.
template <typename A, typename B>
void alternate(int32_t round, const A& a, const B& b) {
  if (round % 2 == 0) a();
  b();
  if (round % 2 == 1) a();
}

// Each side loads the model for itself: two engines at once would need the memory of both.
void measure_round(const BenchServeCommand& command, const StreamsWork& work, int32_t round,
                   Streams* streams) {
  const GenerateWork requests = seeded_work(work.sizes, work.vocab_size, seed_of(command, round));
  const GenerateWork warmup =
      seeded_work(work.warmup, work.vocab_size, seed_of(command, command.repeats));
  const int64_t num_tokens = num_output_tokens(work.sizes);
  std::optional<Run> generate, service;
  Run server;
  const auto measure_generate = [&] {
    if (command.is_running_server()) return;
    LLM llm = load_llm(work.engine, false);
    run_generate(llm, warmup);
    generate = run_generate(llm, requests);
  };
  const auto measure_server = [&] {
    BenchServer bench(command, work.engine);
    run_server(bench, warmup);
    const auto measure_service = [&] {
      if (bench.service() != nullptr) service = run_service(bench, requests);
    };
    alternate(round, measure_service, [&] { server = run_server(bench, requests); });
  };
  alternate(round, measure_generate, measure_server);

  streams->server.add(server, num_tokens);
  std::ranges::copy(server.first_token_seconds, std::back_inserter(streams->first_token_seconds));
  std::ranges::copy(server.gap_seconds, std::back_inserter(streams->gap_seconds));
  streams->client_share = server.client_cpu_seconds / server.seconds;
  if (!generate) return;
  streams->generate.add(*generate, num_tokens);
  streams->service.add(*service, num_tokens);
  streams->shares.push_back(generate->seconds / server.seconds);
  streams->service_shares.push_back(generate->seconds / service->seconds);
  streams->added_seconds.push_back(server.engine->seconds_per_step() -
                                   generate->engine->seconds_per_step());
  for (size_t i = 0; i < server.texts.size(); ++i) {
    streams->num_equal_texts += server.texts[i] == generate->texts[i] ? 1 : 0;
  }
}

// In the units of the members.
nlohmann::ordered_json way_json(const Way& way) {
  nlohmann::ordered_json json = {
      {"tokens_per_second", spread_json(spread_of(way.tokens_per_second))}};
  if (!way.step_seconds.empty()) {
    json["engine_seconds_per_step"] = spread_json(spread_of(way.step_seconds));
  }
  return json;
}

nlohmann::ordered_json quantiles_json(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return {{"p50", quantile(values, 0.5)}, {"p99", quantile(values, 0.99)}};
}

// "1.8 ms", "2.31 s".
std::string short_seconds(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

std::string quantiles_text(const std::vector<double>& values) {
  if (values.empty()) return "none";
  return fmt::format("{} (p50), {} (p99)", short_seconds(quantile(values, 0.5)),
                     short_seconds(quantile(values, 0.99)));
}

// `shares`: of the rate of generate, by round; empty for generate itself.
void add_row(Table& table, const std::string& name, const Way& way,
             const std::vector<double>& shares) {
  table.add({name, format_spread(spread_of(way.tokens_per_second)),
             shares.empty() ? "" : format_percent(spread_of(shares).median),
             way.step_seconds.empty()
                 ? ""
                 : fmt::format("{:.0f} us", 1e6 * spread_of(way.step_seconds).median)});
}

std::string streams_text(const Streams& streams) {
  Table table({"way", "generated tok/s", "of generate", "engine's thread a step"});
  const bool has_engine = !streams.shares.empty();
  if (has_engine) {
    add_row(table, "generate", streams.generate, {});
    add_row(table, "service", streams.service, streams.service_shares);
  }
  add_row(table, "server", streams.server, streams.shares);
  std::string text = table.to_string();
  if (has_engine) {
    const Spread shares = spread_of(streams.shares);
    text += fmt::format(
        "server over generate, by round: {} ({} to {}); {:+.0f} us of the engine's thread a step\n"
        "{} texts are those of generate\n",
        format_percent(shares.median), format_percent(shares.min), format_percent(shares.max),
        1e6 * spread_of(streams.added_seconds).median, streams.num_equal_texts);
  }
  return text + fmt::format("first token after {}, then every {}\nthe client took {} of a core\n",
                            quantiles_text(streams.first_token_seconds),
                            quantiles_text(streams.gap_seconds),
                            format_percent(streams.client_share));
}

nlohmann::ordered_json streams_json(const StreamsWork& work, const Streams& streams) {
  nlohmann::ordered_json json = {
      {"num_requests", work.sizes.size()},
      {"output_tokens", num_output_tokens(work.sizes)},
      {"server", way_json(streams.server)},
      {"first_token_seconds", quantiles_json(streams.first_token_seconds)},
      {"gap_seconds", quantiles_json(streams.gap_seconds)},
      {"client_cpu_share", streams.client_share}};
  if (streams.shares.empty()) return json;
  json["generate"] = way_json(streams.generate);
  json["service"] = way_json(streams.service);
  json["share_of_generate"] = spread_json(spread_of(streams.shares));
  json["service_share_of_generate"] = spread_json(spread_of(streams.service_shares));
  json["added_engine_seconds_per_step"] = spread_json(spread_of(streams.added_seconds));
  json["num_equal_texts"] = streams.num_equal_texts;
  return json;
}

// Rounds load the model anew, which takes longer than a small form of the work itself.
Streams measure_streams(const BenchServeCommand& command, const StreamsWork& work) {
  Streams streams;
  ProgressLine line("measuring streams");
  for (int32_t round = 0; round < command.repeats; ++round) {
    line.update(static_cast<double>(round) / command.repeats);
    measure_round(command, work, round, &streams);
  }
  return streams;
}

// The model of a running server is not known here.
std::string subject(const BenchServeCommand& command) {
  if (!command.url.empty()) return command.url;
  if (!command.uds.empty()) return command.uds;
  return model_name(command.engine.model) + describe_weights(command.engine);
}

}  // namespace

// Poor numbers are results, too: the status is 0 unless something failed.
int bench_serve(const BenchServeCommand& command) {
  const StreamsWork work = make_streams_work(command);
  const Streams streams = measure_streams(command, work);
  nlohmann::ordered_json json = {{"bench", "serve"},
                                 {"scenario", "streams"},
                                 {"subject", subject(command)},
                                 {"repeats", command.repeats}};
  json.update(streams_json(work, streams));
  write_bench(command.json, std::move(json), machine_name(command.engine),
              fmt::format("serve streams, {}\n{}", subject(command), streams_text(streams)));
  return kExitOk;
}

}  // namespace sluice::cli
