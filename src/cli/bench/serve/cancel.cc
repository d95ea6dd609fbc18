// Scenario cancel: clients that close their connection. Their memory must be free soon, and the
// same prompt must find what had been computed.
#include <array>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/bench_server.h"
#include "cli/bench/serve/scenario.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "sluice/inspect.h"

namespace sluice::cli {
namespace {

// Beyond any bound; a server that takes longer holds the memory for good.
// More than a server generates before its client can have left.
constexpr int64_t kAnswerTokens = 4096;
constexpr size_t kAnswerEvents = 8;  // then the client is in the answer

enum class Moment { kQueued, kHalf, kAnswer };

// A moment to leave, and how. FIN is what a program does that ends or closes; RST what a killed
// machine's network or a proxy does. Without a stream the server has sent nothing yet, and only
// reading tells it that the client has gone.
struct Case {
  const char* name;
  Moment moment;
  LoadRequest::Leaving how;
  bool stream;
};
using Leaving = LoadRequest::Leaving;
constexpr std::array kCases = {
    Case{"queued, FIN", Moment::kQueued, Leaving::kFin, true},
    Case{"queued, RST, no stream", Moment::kQueued, Leaving::kReset, false},
    Case{"half of the prompt, FIN", Moment::kHalf, Leaving::kFin, true},
    Case{"half of the prompt, RST", Moment::kHalf, Leaving::kReset, true},
    Case{"in the answer, FIN", Moment::kAnswer, Leaving::kFin, true},
};

// One row: the rounds of a case.
struct CancelRow {
  std::vector<double> seconds;    // from the close to free memory
  std::vector<double> processed;  // tokens of the prompt when the client left, as it was told
  std::vector<double> found;      // by the same prompt afterwards
};

struct Cancel {
  std::array<CancelRow, kCases.size()> rows;
  std::vector<double> prompt_seconds;  // of a whole prompt
  double bound_seconds = 1;
  int64_t prompt_tokens = 0;
};

// Until the server has queued the request, which an answer without a stream does not show.
void wait_for_queue(LoadClient& client, const LoadRequest& request) {
  while (fetch_counts(client).is_idle() && !request.received().is_whole) {
  }
}

// Tokens that the client was told are computed, when it leaves.
int64_t wait_for_moment(LoadClient& client, const LoadRequest& request, Moment moment,
                        int64_t prompt_tokens) {
  if (moment == Moment::kQueued) {
    wait_for_queue(client, request);
    return 0;
  }
  int64_t num_processed = 0;
  for (size_t events = 1; request.wait_for_events(events); ++events) {
    const Completion so_far = read_completion(request.received());
    num_processed = so_far.num_processed;
    if (moment == Moment::kHalf && num_processed >= prompt_tokens / 2) break;
    if (moment == Moment::kAnswer && so_far.arrivals.size() >= kAnswerEvents) break;
  }
  return num_processed;
}

// Leaves at the moment of the case, waits for the memory, and sends the prompt again as a client
// does that gave up too early.
void measure_case(LoadClient& client, const Case& one, CompletionRequest request, CancelRow* row) {
  request.stream = one.stream;
  const auto prompt_tokens = std::ssize(request.prompt);
  const LoadRequest left = client.post(kCompletionsPath, completion_json(request));
  const int64_t num_processed = wait_for_moment(client, left, one.moment, prompt_tokens);
  const LoadTime start = LoadClock::now();
  left.leave(one.how);
  if (left.received().is_whole) {
    fail(ErrorCode::kIo, "the answer ended before its client left; raise --prompt-tokens");
  }
  row->seconds.push_back(seconds_between(start, wait_for_idle(client, kGiveUp)));
  row->processed.push_back(static_cast<double>(num_processed));
  request.max_tokens = 1;
  request.stream = false;
  const Completion again = complete(client, request, "the same prompt again");
  row->found.push_back(static_cast<double>(again.num_cached));
}

// Each has a prompt of its own: a prompt that was computed before would be found.
CompletionRequest make_request(const BenchServeCommand& command, int32_t vocab_size,
                               uint64_t index) {
  const auto seed = static_cast<uint64_t>(command.engine.seed) + index;
  return {.prompt = random_prompt(command.prompt_tokens.value_or(8192), vocab_size, seed),
          .max_tokens = kAnswerTokens,
          .return_progress = true};
}

// The bound is a second, or a layer of a span if that is longer; no span exceeds the prompt.
Cancel measure_cancel(const BenchServeCommand& command, BenchServer& server) {
  const int32_t vocab_size = prompt_vocab_size(command);
  LoadClient& client = server.client();
  Cancel cancel;
  uint64_t index = 0;
  ProgressLine line("leaving");
  for (int32_t round = 0; round < command.repeats; ++round) {
    CompletionRequest whole = make_request(command, vocab_size, index++);
    cancel.prompt_tokens = std::ssize(whole.prompt);
    whole.max_tokens = 1;
    const LoadTime start = LoadClock::now();
    complete(client, whole, "a whole prompt");
    cancel.prompt_seconds.push_back(seconds_between(start, LoadClock::now()));
    for (size_t i = 0; i < kCases.size(); ++i) {
      line.update(static_cast<double>(index) / (command.repeats * (kCases.size() + 1.0)));
      measure_case(client, kCases[i], make_request(command, vocab_size, index++), &cancel.rows[i]);
    }
  }
  if (!command.is_running_server()) {
    const int32_t num_layers = summarize_model(command.engine.model).num_layers;
    cancel.bound_seconds = std::max(1.0, spread_of(cancel.prompt_seconds).median / num_layers);
  }
  return cancel;
}

}  // namespace

// Medians, and the worst of all rounds, since the bound is a promise.
ScenarioReport bench_cancel(const BenchServeCommand& command) {
  BenchServer server(command, command.engine);
  const Cancel cancel = measure_cancel(command, server);
  const bool is_idle = server.counts().is_idle();
  Table table({"client left", "memory free after", "worst", "was told", "found again"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t i = 0; i < kCases.size(); ++i) {
    const CancelRow& row = cancel.rows[i];
    const Spread seconds = spread_of(row.seconds);
    const Spread processed = spread_of(row.processed), found = spread_of(row.found);
    table.add({kCases[i].name, short_seconds(seconds.median), short_seconds(seconds.max),
               fmt::format("{:.0f}", processed.median), fmt::format("{:.0f}", found.median)});
    rows.push_back({{"left", kCases[i].name},
                    {"seconds", spread_json(seconds)},
                    {"processed_tokens", spread_json(processed)},
                    {"found_tokens", spread_json(found)}});
  }
  const Spread whole = spread_of(cancel.prompt_seconds);
  const std::string text = fmt::format(
      "prompts of {} tokens ({} s to compute), KV offload {}; bound {}; memory at its baseline: "
      "{}\n{}",
      format_tokens(cancel.prompt_tokens), format_spread(whole),
      kv_offload_name(command.engine.kv.offload), short_seconds(cancel.bound_seconds),
      is_idle ? "yes" : "NO", table.to_string());
  return {.text = text,
          .json = {{"prompt_tokens", cancel.prompt_tokens},
                   {"kv_offload", kv_offload_name(command.engine.kv.offload)},
                   {"prompt_seconds", spread_json(whole)},
                   {"bound_seconds", cancel.bound_seconds},
                   {"is_idle", is_idle},
                   {"results", rows}}};
}

}  // namespace sluice::cli
