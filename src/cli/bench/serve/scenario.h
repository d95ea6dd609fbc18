// The scenarios of `sluice bench serve`: each measures one promise of the server.
//
// All compare runs of one process in alternating order, and take counts from the server's metrics.
// What they assume of the server: nothing else uses it. Called by serve_bench.cc. Thread rule: main
// thread.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/bench/serve/completion.h"
#include "cli/options/options.h"

namespace sluice::cli {

struct ScenarioReport {
  std::string text;  // tables and sentences, with a final newline
  nlohmann::ordered_json json;
};

// Errors of all: those of BenchServer; kIo if the server refuses or cuts an answer; Interrupted.

// Many requests at once, over HTTP, through the service alone, and by LLM::generate: tokens per
// second and time of the engine's thread. Texts must be equal. The prefix cache is off. Memory: one
// engine at a time.
ScenarioReport bench_streams(const BenchServeCommand& command);
// An answer and a short prompt beside a long prompt, and both alone: rate and longest gap of the
// answer, first tokens of the prompts. The answer must last until the long prompt has been sent;
// else kIo. If it ends before the prompt, only the time until then counts.
ScenarioReport bench_beside(const BenchServeCommand& command);
// Questions on one document, all sent at once: tokens computed, beside the fewest that blocks of
// the cache allow. Requests of others at the same time would be counted, too.
ScenarioReport bench_shared(const BenchServeCommand& command);
// Clients that leave before the first byte, within the prompt and within the answer: time until
// their memory is free, and tokens that the same prompt then finds. The time includes the server's
// noticing of the closed connection and a page of metrics.
ScenarioReport bench_cancel(const BenchServeCommand& command);
// One long answer, over HTTP and by LLM::generate: time of a token in each eighth. What grows with
// the context in both is the model's; what grows in the first alone is the server's.
ScenarioReport bench_answer(const BenchServeCommand& command);
// Requests of all kinds, of which one in five is left: memory held afterwards, and the process's,
// in which the client's small part is included.
ScenarioReport bench_mixed(const BenchServeCommand& command);

// Calls both, in an order that changes with each round: a drift of the machine's speed then does
// not favour one of them.
template <typename A, typename B>
void alternate(int32_t round, const A& a, const B& b) {
  if (round % 2 == 0) a();
  b();
  if (round % 2 == 1) a();
}

// The value that this share of them does not exceed. REQUIRES: at least one value.
double quantile(std::vector<double> values, double share);

// "1.8 ms", "2.31 s".
std::string short_seconds(double seconds);

// Tokens that arrived after `from` and not after `to`, per second.
double tokens_per_second(const std::vector<Completion::Arrival>& arrivals, LoadTime from,
                         LoadTime to);
// The longest time without a token between `from` and `to`, in seconds; the gaps at both ends
// count.
double longest_gap(const std::vector<Completion::Arrival>& arrivals, LoadTime from, LoadTime to);

// Seconds per token in each of `num_parts` equal parts of an answer, after its first token.
// REQUIRES: more tokens than parts.
std::vector<double> token_seconds_by_part(const std::vector<Completion::Arrival>& arrivals,
                                          size_t num_parts);

}  // namespace sluice::cli
