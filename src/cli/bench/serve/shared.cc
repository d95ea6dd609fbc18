// Scenario shared: questions on one document, all sent at once. The document must be computed once,
// which is counted: tokens of the prompts less those that the prefix cache had.
#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/bench_server.h"
#include "cli/bench/serve/scenario.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"

namespace sluice::cli {
namespace {

// After the document, for each question. It gets one token.
constexpr int64_t kQuestionTokens = 16;

// All questions have one length: the count of what must be computed is then a formula.
struct SharedWork {
  int64_t document_tokens = 0;
  int32_t num_questions = 0;

  int64_t num_prompt_tokens() const { return num_questions * (document_tokens + kQuestionTokens); }
  // If the document is computed once: the cache has whole blocks of it for the other questions.
  int64_t fewest_computed(int64_t block_tokens) const {
    const int64_t findable = document_tokens / block_tokens * block_tokens;
    return num_prompt_tokens() - (num_questions - 1) * findable;
  }
};

// What was counted and timed.
struct Shared {
  std::vector<double> computed;  // tokens, by round
  int64_t fewest = 0;
  std::vector<double> one_seconds;  // one question on a document: its first token
  std::vector<double> all_seconds;  // the last of the first tokens
};

// The bodies of all questions, made before the clock starts.
std::vector<std::string> bodies_of(const SharedWork& work, int32_t vocab_size, uint64_t seed) {
  const std::vector<int32_t> document = random_prompt(work.document_tokens, vocab_size, seed);
  std::vector<std::string> bodies;
  for (int32_t i = 0; i < work.num_questions; ++i) {
    CompletionRequest request{.prompt = document, .max_tokens = 1, .seed = i};
    // The first id alone makes the questions differ.
    const std::vector<int32_t> rest = random_prompt(kQuestionTokens - 1, vocab_size, seed + 1);
    request.prompt.push_back(i % vocab_size);
    request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
    bodies.push_back(completion_json(request));
  }
  return bodies;
}

// Seconds until the last of them has its token.
double ask(LoadClient& client, const std::vector<std::string>& bodies) {
  std::vector<LoadRequest> requests;
  for (const std::string& body : bodies) requests.push_back(client.post(kCompletionsPath, body));
  double last = 0;
  for (const LoadRequest& request : requests) {
    last = std::max(last, wait_for_completion(request, "a question").whole_seconds());
  }
  return last;
}

// A document is asked about by one question alone, and another by all at once: the second may take
// little longer than the first. Documents differ between rounds, so that none is found.
Shared measure(const BenchServeCommand& command, const SharedWork& work, BenchServer& server) {
  const int32_t vocab_size = prompt_vocab_size(command);
  Shared shared;
  shared.fewest = work.fewest_computed(server.counts().block_tokens);
  ProgressLine line("asking about one document");
  for (int32_t round = 0; round < command.repeats; ++round) {
    line.update(static_cast<double>(round) / command.repeats);
    const uint64_t seed =
        static_cast<uint64_t>(command.engine.seed) + 4 * static_cast<uint64_t>(round);
    const auto one = [&] {
      const SharedWork single{.document_tokens = work.document_tokens, .num_questions = 1};
      shared.one_seconds.push_back(ask(server.client(), bodies_of(single, vocab_size, seed + 2)));
    };
    const auto all = [&] {
      const std::vector<std::string> bodies = bodies_of(work, vocab_size, seed);
      const ServerCounts before = server.counts();
      shared.all_seconds.push_back(ask(server.client(), bodies));
      const ServerCounts counts = counted_between(before, server.counts());
      shared.computed.push_back(static_cast<double>(counts.num_computed_tokens()));
    };
    alternate(round, one, all);
  }
  return shared;
}

}  // namespace

// The count is what is promised; the times only show that it had an effect.
ScenarioReport bench_shared(const BenchServeCommand& command) {
  const SharedWork work{.document_tokens = command.prompt_tokens.value_or(31 * 1024),
                        .num_questions = command.num_requests.value_or(8)};
  BenchServer server(command, command.engine);
  const Shared shared = measure(command, work, server);
  const Spread computed = spread_of(shared.computed);
  const double ratio = spread_of(shared.all_seconds).median / spread_of(shared.one_seconds).median;
  std::string text = fmt::format(
      "{} questions of {} tokens at once on a document of {} tokens\n"
      "prompt tokens sent {}, computed {:.0f} ({:.0f} to {:.0f}), fewest possible {}\n"
      "first tokens of all after {} s, of one question alone after {} s: {:.2f} times as long\n",
      work.num_questions, kQuestionTokens, format_tokens(work.document_tokens),
      work.num_prompt_tokens(), computed.median, computed.min, computed.max, shared.fewest,
      format_spread(spread_of(shared.all_seconds)), format_spread(spread_of(shared.one_seconds)),
      ratio);
  nlohmann::ordered_json json = {{"num_questions", work.num_questions},
                                 {"document_tokens", work.document_tokens},
                                 {"prompt_tokens", work.num_prompt_tokens()},
                                 {"computed_tokens", spread_json(computed)},
                                 {"fewest_tokens", shared.fewest},
                                 {"one_seconds", spread_json(spread_of(shared.one_seconds))},
                                 {"all_seconds", spread_json(spread_of(shared.all_seconds))}};
  return {.text = std::move(text), .json = std::move(json)};
}

}  // namespace sluice::cli
