// sluice-lab turns: measures the wait for the first token of a long prompt, of a second turn after
// it, and, with a KV store, of a second turn after a restart. Runs on the main thread.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/units.h"
#include "core/clock.h"
#include "io/json_type.h"
#include "lab/commands.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using Tokens = std::vector<int32_t>;

// One request.
struct Turn {
  Tokens tokens;             // of the prompt and the answer
  double seconds;            // from the request to its first token
  int64_t num_found_tokens;  // of the prompt, that were not computed
};

// The same place of several conversations.
struct TurnRow {
  const char* name;
  std::vector<double> seconds;
  int64_t num_tokens = 0;        // of the prompt
  int64_t num_found_tokens = 0;  // the fewest

  void add(const Turn& turn, int64_t num_prompt_tokens) {
    num_found_tokens =
        seconds.empty() ? turn.num_found_tokens : std::min(num_found_tokens, turn.num_found_tokens);
    num_tokens = num_prompt_tokens;
    seconds.push_back(turn.seconds);
  }
};

class TurnsRig {
 public:
  TurnsRig(const BenchTurnsCommand& command, int32_t vocab_size)
      : command_(command), vocab_size_(vocab_size) {}

  // The rows of prompts of this length.
  std::vector<TurnRow> measure(int64_t num_tokens) {
    TurnRow first = {.name = "prompt"}, second = {.name = "second turn"};
    TurnRow restarted = {.name = "second turn, restarted"};
    std::vector<Tokens> conversations;
    start(num_tokens);
    for (int32_t i = 0; i < command_.repeats; ++i) {
      conversations.push_back(random_prompt(num_tokens, vocab_size_, next_seed_++));
      go_on(conversations.back(), first);
      ask(conversations.back(), second);
    }
    if (!command_.engine.kv_store.dir) return {first, second};
    start(num_tokens);
    for (const Tokens& conversation : conversations) ask(conversation, restarted);
    return {first, second, restarted};
  }

 private:
  // A new engine; its first requests are not measured.
  void start(int64_t num_tokens) {
    EngineOptions engine = command_.engine;
    const int64_t longest = num_tokens + command_.turn_tokens + 2 * command_.output_tokens;
    if (!engine.max_model_len) engine.max_model_len = longest;
    llm_.reset();
    llm_.emplace(load_llm(engine, false));
    TurnRow unused = {};
    Tokens conversation = random_prompt((num_tokens + 7) / 8, vocab_size_, next_seed_++);
    go_on(conversation, unused);
    ask(conversation, unused);
  }

  void go_on(Tokens& conversation, TurnRow& row) {
    const auto num_tokens = static_cast<int64_t>(conversation.size());
    Turn turn = generate(std::move(conversation));
    row.add(turn, num_tokens);
    conversation = std::move(turn.tokens);
  }

  // Another question each time, so that earlier ones do not help.
  void ask(Tokens conversation, TurnRow& row) {
    const Tokens question = random_prompt(command_.turn_tokens, vocab_size_, next_seed_++);
    conversation.insert(conversation.end(), question.begin(), question.end());
    go_on(conversation, row);
  }

  Turn generate(Tokens prompt) {
    SamplingParams params;
    params.temperature = 0;
    params.ignore_eos = true;
    params.max_tokens = command_.output_tokens;
    GenerateOptions options;
    options.should_cancel = interrupted;
    const int64_t start_ns = steady_ns();
    const RequestOutput output = llm_->generate({prompt}, params, options).front();
    if (interrupted()) throw Interrupted();
    prompt.insert(prompt.end(), output.token_ids.begin(), output.token_ids.end());
    return {.tokens = std::move(prompt),
            .seconds = static_cast<double>(output.stats.first_token_ns - start_ns) * 1e-9,
            .num_found_tokens = output.num_cached_tokens};
  }

  const BenchTurnsCommand& command_;
  int32_t vocab_size_;
  uint64_t next_seed_ = 1;
  std::optional<LLM> llm_;
};

}  // namespace

int bench_turns(const BenchTurnsCommand& command) {
  const ModelSummary model = summarize_model(command.engine.model, command.engine.kv.cache_dtype);
  TurnsRig rig(command, model.vocab_size);
  Table table({"", "tokens", "found", "first token after", "least", "most"});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int64_t length : command.lengths) {
    for (const TurnRow& row : rig.measure(length)) {
      const Spread seconds = spread_of(row.seconds);
      table.add({row.name, fmt::format("{}", row.num_tokens),
                 fmt::format("{}", row.num_found_tokens), format_seconds(seconds.median),
                 format_seconds(seconds.min), format_seconds(seconds.max)});
      rows.push_back({{"what", row.name},
                      {"prompt_tokens", row.num_tokens},
                      {"found_tokens", row.num_found_tokens},
                      {"first_token_seconds", spread_json(seconds)}});
    }
  }
  const std::string name = model_name(command.engine.model);
  write_bench(command.json, {{"bench", "turns"}, {"model", name}, {"rows", std::move(rows)}},
              machine_name(command.engine),
              fmt::format("turns, {}{}, {}\n\n{}", name, describe_weights(command.engine),
                          format_repeats(command.repeats), table.to_string()));
  return kExitOk;
}

}  // namespace sluice::lab
