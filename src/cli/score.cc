// sluice score: prints the log-probability of each token of given texts. Runs on the main thread.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "io/json_type.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

// Totals of one text. perplexity = exp(-sum / num_tokens).
struct Sum {
  double sum = 0;
  size_t num_tokens = 0;
  size_t num_greedy = 0;  // tokens that were the likeliest at their position

  double mean() const { return num_tokens > 0 ? sum / static_cast<double>(num_tokens) : 0; }
  double perplexity() const { return std::exp(-mean()); }
};

Sum sum_of(const std::vector<TokenScore>& scores) {
  Sum sum;
  for (const TokenScore& score : scores) {
    sum.sum += static_cast<double>(score.logprob);
    sum.num_greedy += score.token_id == score.top_token_id ? 1 : 0;
  }
  sum.num_tokens = scores.size();
  return sum;
}

// A token's text in quotes: control characters as escapes, incomplete characters as U+FFFD.
std::string quoted(const LLM& llm, int32_t token_id) {
  using Handler = nlohmann::json::error_handler_t;
  return nlohmann::json(llm.decode({token_id})).dump(-1, ' ', false, Handler::replace);
}

// One line per token, then the totals. The first num_unscored tokens have no score.
std::string as_text(const LLM& llm, const std::vector<int32_t>& ids, size_t num_unscored,
                    const std::vector<TokenScore>& scores) {
  std::string text = fmt::format("{:>10}  {:>7}  {}\n", "logprob", "id", "token");
  for (size_t i = 0; i < num_unscored; ++i) {
    text += fmt::format("{:>10}  {:>7}  {}\n", "-", ids[i], quoted(llm, ids[i]));
  }
  for (const TokenScore& score : scores) {
    text += fmt::format("{:10.4f}  {:7}  {}\n", score.logprob, score.token_id,
                        quoted(llm, score.token_id));
  }
  const Sum sum = sum_of(scores);
  return text + fmt::format(
                    "{} tokens scored: sum {:.4f}, mean {:.4f}, perplexity {:.4f}; {} were the "
                    "likeliest\n",
                    sum.num_tokens, sum.sum, sum.mean(), sum.perplexity(), sum.num_greedy);
}

// One line of JSON with lists of one entry per token: null for the first num_unscored, and for
// those left out by Ctrl-C.
std::string as_json(size_t index, const std::vector<int32_t>& ids, size_t num_unscored,
                    const std::vector<TokenScore>& scores) {
  using Json = nlohmann::ordered_json;
  Json logprobs = std::vector<Json>(num_unscored), top_ids = logprobs, top_logprobs = logprobs;
  for (const TokenScore& score : scores) {
    logprobs.push_back(score.logprob);
    top_ids.push_back(score.top_token_id);
    top_logprobs.push_back(score.top_logprob);
  }
  // Lists of equal length can be read side by side.
  for (Json* list : {&logprobs, &top_ids, &top_logprobs}) {
    while (list->size() < ids.size()) list->push_back(nullptr);
  }
  const Sum sum = sum_of(scores);
  return json_text(Json{{"index", index},
                        {"token_ids", ids},
                        {"logprobs", std::move(logprobs)},
                        {"top_token_ids", std::move(top_ids)},
                        {"top_logprobs", std::move(top_logprobs)},
                        {"num_scored", sum.num_tokens},
                        {"num_greedy", sum.num_greedy},
                        {"sum", sum.sum},
                        {"mean", sum.mean()},
                        {"perplexity", sum.perplexity()}});
}

// Scores one text, with progress. Ctrl-C ends it early with the scores so far.
std::vector<TokenScore> score_text(LLM& llm, const std::vector<int32_t>& ids,
                                   int64_t decode_after) {
  ProgressLine progress("scoring");
  LLM::ScoreOptions options;
  options.should_cancel = interrupted;
  options.decode_after = decode_after;
  options.on_progress = [&](int64_t num_scored) {
    progress.update_tokens(num_scored, std::ssize(ids),
                           fmt::format("{} of {} tokens", num_scored, ids.size()));
  };
  return llm.score(ids, options);
}

}  // namespace

int score(const ScoreCommand& command) {
  std::vector<std::string> texts;
  // Before loading, which may take minutes.
  if (command.tokens.empty()) texts = gather_texts(command);
  EngineOptions options = command.engine;
  // Texts are scored once, so their blocks would be kept in vain.
  options.enable_prefix_caching = false;
  LLM llm = load_llm(options, command.verbose);
  std::vector<std::vector<int32_t>> all_ids = command.tokens;
  for (const std::string& text : texts) all_ids.push_back(llm.encode(text));
  for (size_t i = 0; i < all_ids.size() && !interrupted(); ++i) {
    const std::vector<TokenScore> scores = score_text(llm, all_ids[i], command.decode_after);
    if (!command.json && all_ids.size() > 1) {
      write_result(fmt::format("--- {} of {} ---\n", i + 1, all_ids.size()));
    }
    // The first token has no token before it; with --decode-after the whole prefill has no score.
    const auto num_unscored = static_cast<size_t>(std::max<int64_t>(1, command.decode_after));
    write_result(command.json ? as_json(i, all_ids[i], num_unscored, scores)
                              : as_text(llm, all_ids[i], num_unscored, scores));
    flush_results();
  }
  return interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace sluice::cli
