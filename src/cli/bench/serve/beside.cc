// Scenario beside: what a long prompt costs an answer that runs, a short prompt that comes, and
// what they cost the long prompt.
#include <cmath>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/bench_server.h"
#include "cli/bench/serve/scenario.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// Less than a block, and little work beside any pass.
constexpr int64_t kShortTokens = 32;
constexpr size_t kEventsAtStart = 2;  // the empty one, and that of the first token

// The requests of a round. Times of the answer need the number of tokens of each event, since
// events merge while they wait; of the prompts only the first token counts.
struct BesideWork {
  CompletionRequest answer;       // a short prompt, a long answer
  CompletionRequest long_prompt;  // one token of an answer
  CompletionRequest short_prompt;
};

// One value for each round; times in seconds.
struct Beside {
  std::vector<double> alone_rates, rates, rate_shares;        // of the answer, in tokens per second
  std::vector<double> alone_gaps, gaps;                       // the longest of an answer
  std::vector<double> alone_prompts, prompts, prompt_ratios;  // first token of the long prompt
  std::vector<double> short_prompts;                          // and of the short one
  std::vector<double> tokens_beside;  // of the answer, while the long prompt was computed
  // The long prompt's time over that of its own work and of the answer's tokens, both alone: what
  // remains of the ratio if a processor that both use is shared without loss.
  std::vector<double> work_ratios;
  int64_t num_equal_texts = 0;  // of the answer, alone and beside
};

// All prompts differ in every round, so that none is found in the prefix cache.
BesideWork make_work(const BenchServeCommand& command, int32_t vocab_size, int32_t round) {
  const auto seed = static_cast<uint64_t>(command.engine.seed) + static_cast<uint64_t>(round) * 64;
  const auto request = [&](int64_t prompt_tokens, int64_t max_tokens, uint64_t own) {
    return CompletionRequest{.prompt = random_prompt(prompt_tokens, vocab_size, seed + own),
                             .max_tokens = max_tokens,
                             .seed = static_cast<int64_t>(seed + own),
                             .return_token_ids = true};
  };
  BesideWork work{.answer = request(kShortTokens, command.output_tokens.value_or(700), 0),
                  .long_prompt = request(command.prompt_tokens.value_or(8192), 1, 1),
                  .short_prompt = request(kShortTokens, 1, 2)};
  work.long_prompt.return_progress = true;
  work.long_prompt.return_token_ids = false;  // would send the prompt back
  return work;
}

LoadTime last_time(const Completion& completion) { return completion.arrivals.back().time; }

// The server tells its progress at most four times a second, so a prompt that takes less is then
// computed. Returns when a part of the prompt is computed, or all of it.
void wait_for_prompt_to_begin(const LoadRequest& request) {
  size_t num_events = 1;
  while (request.wait_for_events(num_events)) {
    if (read_completion(request.received()).num_processed > 0) return;
    ++num_events;
  }
}

// Another prompt than that beside the answer, which would find the KV of this one.
void measure_alone(LoadClient& client, const BesideWork& work, std::string* text, Beside* beside) {
  const Completion answer = complete(client, work.answer, "the answer alone");
  const LoadTime first = answer.arrivals.front().time;
  *text = answer.texts.at(0);
  beside->alone_rates.push_back(tokens_per_second(answer.arrivals, first, last_time(answer)));
  beside->alone_gaps.push_back(longest_gap(answer.arrivals, first, last_time(answer)));
  CompletionRequest other = work.long_prompt;
  for (int32_t& id : other.prompt) id = id == 0 ? 1 : id - 1;
  beside->alone_prompts.push_back(complete(client, other, "the long prompt alone").whole_seconds());
}

// The answer runs, the long prompt comes, and once a part of that is computed the short prompt.
// What the answer lost is measured from the sending of the long prompt to its end, or to that of
// the answer.
void measure_beside(LoadClient& client, const BesideWork& work, std::string* text, Beside* beside) {
  const std::string long_json = completion_json(work.long_prompt);
  const LoadRequest answering = client.post(kCompletionsPath, completion_json(work.answer));
  answering.wait_for_events(kEventsAtStart);
  const LoadRequest long_prompt = client.post(kCompletionsPath, long_json);
  wait_for_prompt_to_begin(long_prompt);
  const Completion short_prompt = complete(client, work.short_prompt, "the short prompt");
  const Completion computed = wait_for_completion(long_prompt, "the long prompt");
  const Completion answer = wait_for_completion(answering, "the answer beside a long prompt");

  const LoadTime from = computed.sent;
  const LoadTime to = std::min(computed.last_byte, last_time(answer));
  *text = answer.texts.at(0);
  if (to <= from) {
    fail(ErrorCode::kIo, "the answer ended before the long prompt was sent; raise --output-tokens");
  }
  beside->prompts.push_back(computed.whole_seconds());
  const double rate = tokens_per_second(answer.arrivals, from, to);
  beside->rates.push_back(rate);
  beside->tokens_beside.push_back(std::round(rate * seconds_between(from, to)));
  beside->gaps.push_back(longest_gap(answer.arrivals, from, to));
  beside->short_prompts.push_back(seconds_between(short_prompt.sent, last_time(short_prompt)));
}

// Both parts of a round use one server: what it learnt of the rates of prefill serves both.
Beside measure_beside(const BenchServeCommand& command, BenchServer& server) {
  const int32_t vocab_size = prompt_vocab_size(command);
  Beside beside;
  ProgressLine line("measuring an answer beside a long prompt");
  for (int32_t round = 0; round < command.repeats; ++round) {
    line.update(static_cast<double>(round) / command.repeats);
    const BesideWork work = make_work(command, vocab_size, round);
    std::string alone, together;
    alternate(
        round, [&] { measure_alone(server.client(), work, &alone, &beside); },
        [&] { measure_beside(server.client(), work, &together, &beside); });
    beside.rate_shares.push_back(beside.rates.back() / beside.alone_rates.back());
    const double alone_prompt = beside.alone_prompts.back();
    const double answer_work = beside.tokens_beside.back() / beside.alone_rates.back();
    beside.prompt_ratios.push_back(beside.prompts.back() / alone_prompt);
    beside.work_ratios.push_back(beside.prompts.back() / (alone_prompt + answer_work));
    beside.num_equal_texts += alone == together ? 1 : 0;
  }
  return beside;
}

// Of rounds.
double largest(const std::vector<double>& values) { return spread_of(values).max; }
double median(const std::vector<double>& values) { return spread_of(values).median; }

// Gaps and first tokens are promises, so the longest of all rounds counts; of rates the median.
std::string beside_text(const BenchServeCommand& command, const Beside& beside) {
  const double stall = 1e-3 * command.engine.max_stall_ms;
  Table table({"what", "alone", "beside", "beside / alone", "promised"});
  table.add({"answer, tok/s", fmt::format("{:.1f}", median(beside.alone_rates)),
             fmt::format("{:.1f}", median(beside.rates)),
             format_percent(median(beside.rate_shares)), ">= 50 %"});
  table.add({"answer, longest gap", short_seconds(largest(beside.alone_gaps)),
             short_seconds(largest(beside.gaps)), "",
             "<= " + short_seconds(stall + largest(beside.alone_gaps))});
  table.add({"long prompt, first token", short_seconds(median(beside.alone_prompts)),
             short_seconds(median(beside.prompts)), format_percent(median(beside.prompt_ratios)),
             "<= 110 %"});
  table.add({"short prompt, first token", "", short_seconds(largest(beside.short_prompts)), "",
             "< " + short_seconds(2 * stall)});
  return table.to_string() +
         fmt::format(
             "{:.0f} tokens of the answer came while the long prompt was computed, which "
             "took {} of the time that both take one after the other\n"
             "{} of {} answers have the same text as alone\n",
             median(beside.tokens_beside), format_percent(median(beside.work_ratios)),
             beside.num_equal_texts, command.repeats);
}

nlohmann::ordered_json beside_json(const BenchServeCommand& command, const Beside& beside) {
  const auto spread = [](const std::vector<double>& values) {
    return spread_json(spread_of(values));
  };
  return {{"max_stall_ms", command.engine.max_stall_ms},
          {"answer_alone_tokens_per_second", spread(beside.alone_rates)},
          {"answer_tokens_per_second", spread(beside.rates)},
          {"answer_rate_share", spread(beside.rate_shares)},
          {"answer_alone_gap_seconds", spread(beside.alone_gaps)},
          {"answer_gap_seconds", spread(beside.gaps)},
          {"long_prompt_alone_seconds", spread(beside.alone_prompts)},
          {"long_prompt_seconds", spread(beside.prompts)},
          {"long_prompt_ratio", spread(beside.prompt_ratios)},
          {"short_prompt_seconds", spread(beside.short_prompts)},
          {"work_ratio", spread(beside.work_ratios)},
          {"tokens_beside", spread(beside.tokens_beside)},
          {"num_equal_texts", beside.num_equal_texts}};
}

}  // namespace

ScenarioReport bench_beside(const BenchServeCommand& command) {
  BenchServer server(command, command.engine);
  const Beside beside = measure_beside(command, server);
  const BesideWork work = make_work(command, 2, 0);
  const std::string head = fmt::format(
      "an answer of {} tokens, a long prompt of {}, a short one of {}; --max-stall-ms {}\n",
      work.answer.max_tokens, format_tokens(std::ssize(work.long_prompt.prompt)), kShortTokens,
      command.engine.max_stall_ms);
  return {.text = head + beside_text(command, beside), .json = beside_json(command, beside)};
}

}  // namespace sluice::cli
