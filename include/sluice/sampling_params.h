// SamplingParams: how the tokens of one request are sampled and when it ends, named as in vLLM.
//
// Passed to LLM::generate and LLM::add_request; the sampler and the stop rules of src/engine read
// it.
// Thread rule: a value.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sluice/option_row.h"
#include "sluice/structured_output.h"

namespace sluice {

// The contents of a request's outputs from LLM::step. LLM::generate overrides it.
enum class OutputKind {
  kDelta,      // an output for each token and each part of the prompt, with what is new
  kFinalOnly,  // one output, at the end, with all of the answer
};

struct SamplingParams {
  float temperature = 1.0f;      // 0 is greedy
  std::optional<int32_t> top_k;  // most likely tokens kept; empty keeps the whole vocabulary
  float top_p = 1.0f;            // in (0, 1]
  float min_p = 0.0f;            // in [0, 1], relative to the most likely token
  // Two requests with the same prompt, parameters and seed give the same tokens, alone or in any
  // batch; all 2^64 seeds differ. Without one, a seed that is not negative is drawn for the
  // request.
  std::optional<int64_t> seed;

  // Changes of the logits before all of the above, in this order; log-probabilities are those of
  // the logits without them. A token gets its bias; then, if prompt or answer have it, a positive
  // logit is divided by the repetition penalty and another multiplied; then, if the answer has it,
  // the frequency penalty times its count and the presence penalty are subtracted.
  std::map<int32_t, float> logit_bias;  // by token id, -100 to 100 or -infinity, which bans a token
  float repetition_penalty = 1.0f;      // above 0; 1 changes nothing
  float frequency_penalty = 0.0f;       // -2 to 2
  float presence_penalty = 0.0f;        // -2 to 2
  std::optional<std::vector<int32_t>> allowed_token_ids;  // no other token is chosen; empty: all
  // What the text must be. Excludes ignore_eos and min_tokens. Null: anything.
  std::shared_ptr<const StructuredOutput> structured;

  int32_t max_tokens = 16;              // at least 1
  int32_t min_tokens = 0;               // no end token before this many
  bool ignore_eos = false;              // benchmarks: go on to max_tokens
  std::vector<std::string> stop;        // strings that end the text; not part of it
  std::vector<int32_t> stop_token_ids;  // ids that end it besides the model's own

  std::optional<int32_t> logprobs;  // log-probability of each token and of the n most likely
  // Log-probability of each prompt token, given those before it, and of the n most likely ones.
  // Such a prompt is computed from its first token; it reads no cached prefix.
  std::optional<int32_t> prompt_logprobs;
  bool skip_special_tokens = true;  // in the text
  // Prefix caching: the prompt finds KV of requests with the same salt alone, so that no time of an
  // answer tells what others asked. Empty: shared by all requests without one.
  std::string cache_salt;
  OutputKind output_kind = OutputKind::kDelta;

  // Errors: kInvalidArgument naming the parameter, its value and its range (NaN included).
  void validate() const;
};

inline constexpr int32_t kMaxLogprobs = 20;  // as vLLM allows

// The rows below are read by the command line, the HTTP API and Python. A row of kDrawRows is an
// option of all three, and of every route that generates; one without a default takes what
// generation_config.json has.

// EngineOptions has a row `seed` too; one option of the command line sets both fields, to values
// that are not negative.
inline constexpr OptionRow kRequestSeedRow = option_row<&SamplingParams::seed>(
    {.name = "seed",
     .min = std::numeric_limits<int64_t>::min(),
     .when_unset = "drawn",
     .help = "same seed, same text (and the seed of dummy weights)",
     .field = {.help = "same seed, same answer"}});

// How tokens are drawn.
inline constexpr std::array kDrawRows = {
    option_row<&SamplingParams::temperature>({.name = "temperature",
                                              .kind = OptionKind::kNumber,
                                              .number_max = std::numeric_limits<float>::max(),
                                              .help = "0 is greedy"}),
    option_row<&SamplingParams::top_k>({.name = "top_k",
                                        .min = 1,
                                        .max = std::numeric_limits<int32_t>::max(),
                                        .unset_from = -1,
                                        .help = "most likely tokens kept; 0 or -1 keeps all"}),
    option_row<&SamplingParams::top_p>(
        {.name = "top_p",
         .kind = OptionKind::kNumber,
         .above_min = true,
         .help = "share of probability kept, above 0 and at most 1"}),
    option_row<&SamplingParams::min_p>({.name = "min_p",
                                        .kind = OptionKind::kNumber,
                                        .help = "least probability kept, relative to the best"}),
    option_row<&SamplingParams::repetition_penalty>(
        {.name = "repetition_penalty",
         .kind = OptionKind::kNumber,
         .number_max = std::numeric_limits<float>::max(),
         .above_min = true,
         .help = "above 1: tokens of prompt and answer are less likely to come again"}),
    option_row<&SamplingParams::frequency_penalty>(
        {.name = "frequency_penalty",
         .kind = OptionKind::kNumber,
         .number_min = -2,
         .number_max = 2,
         .when_unset = "0",
         .help = "subtracted from a logit each time that the answer has the token"}),
    option_row<&SamplingParams::presence_penalty>(
        {.name = "presence_penalty",
         .kind = OptionKind::kNumber,
         .number_min = -2,
         .number_max = 2,
         .when_unset = "0",
         .help = "subtracted from the logits of all tokens that the answer has"}),
    // Of this and the next each choice of a request has a copy, of about 48 KiB and 64 KiB at most:
    // a bias is a node of a map.
    option_row<&SamplingParams::logit_bias>(
        {.name = "logit_bias",
         .kind = OptionKind::kTokenBiases,
         .number_min = -100,
         .number_max = 100,
         .help = "added to logits: 7=1.5,9=-inf; -inf bans a token",
         .field = {.max_items = 1024, .when_unset = "{}", .help = "added to logits"}}),
    option_row<&SamplingParams::allowed_token_ids>(
        {.name = "allowed_token_ids",
         .kind = OptionKind::kTokenIds,
         .max = std::numeric_limits<int32_t>::max(),
         .help = "only these token ids: 1,2,3",
         .field = {.min_items = 1, .max_items = 16'384, .when_unset = "all", .help = "no others"}}),
    kRequestSeedRow,
};

// Each route of the HTTP API has its own default.
inline constexpr OptionRow kMaxTokensRow = option_row<&SamplingParams::max_tokens>(
    {.name = "max_tokens",
     .flags = "-n,--max-tokens",
     .kind = OptionKind::kTokens,
     .min = 1,
     .max = std::numeric_limits<int32_t>::max(),
     .help = "tokens to generate at most (512)",
     .field = {.help = "tokens of an answer at most; more than the room counts as the room"}});

inline constexpr OptionRow kIgnoreEosRow = option_row<&SamplingParams::ignore_eos>(
    {.name = "ignore_eos",
     .kind = OptionKind::kFlag,
     .help = "go on after the model's end token",
     .field = {.when_unset = "false", .help = "go on after end tokens"}});

// Each choice of a request has a copy of the texts, and the engine looks for each at every token.
inline constexpr OptionRow kStopRow =
    option_row<&SamplingParams::stop>({.name = "stop",
                                       .kind = OptionKind::kTexts,
                                       .help = "end before this text; may be repeated",
                                       .field = {.max_list_bytes = 32 << 10,
                                                 .min_bytes = 1,
                                                 .max_bytes = 1024,
                                                 .when_unset = "[]",
                                                 .help = "end before these texts"}});

// When an answer ends, beside max_tokens.
inline constexpr std::array kEndRows = {
    option_row<&SamplingParams::min_tokens>({.name = "min_tokens",
                                             .kind = OptionKind::kTokens,
                                             .max = std::numeric_limits<int32_t>::max(),
                                             .when_unset = "0",
                                             .help = "no end before this many"}),
    kIgnoreEosRow,
    kStopRow,
    option_row<&SamplingParams::stop_token_ids>(
        {.name = "stop_token_ids",
         .kind = OptionKind::kTokenIds,
         .max = std::numeric_limits<int32_t>::max(),
         .help = "end at these token ids: 1,2,3",
         .field = {.max_items = 64, .when_unset = "[]", .help = "end at these tokens"}}),
};

inline constexpr OptionRow kLogprobsRow = option_row<&SamplingParams::logprobs>(
    {.name = "logprobs",
     .max = kMaxLogprobs,
     .help = "log-probabilities of the N likeliest tokens, 0 to 20 (with --json)",
     .field = {.when_unset = "none", .help = "of the N likeliest tokens"}});

inline constexpr OptionRow kPromptLogprobsRow = option_row<&SamplingParams::prompt_logprobs>(
    {.name = "prompt_logprobs",
     .max = kMaxLogprobs,
     .help = "the same for the tokens of the prompt (with --json)",
     .field = {.when_unset = "none", .help = "of the prompt's tokens"}});

namespace option_row_detail {

// The rows of several tables, in their order.
template <size_t... kSizes>
constexpr auto joined(const std::array<OptionRow<SamplingParams>, kSizes>&... tables) {
  std::array<OptionRow<SamplingParams>, (kSizes + ...)> rows = {};
  size_t count = 0;
  const auto add = [&](const auto& table) {
    for (const auto& row : table) rows[count++] = row;
  };
  (add(tables), ...);
  return rows;
}

}  // namespace option_row_detail

// All options of the command line.
inline constexpr std::array kSamplingRows = option_row_detail::joined(
    kDrawRows, std::array{kMaxTokensRow}, kEndRows, std::array{kLogprobsRow, kPromptLogprobsRow});

// Options that the command line does not have.
inline constexpr OptionRow kSkipSpecialRow =
    option_row<&SamplingParams::skip_special_tokens>({.name = "skip_special_tokens",
                                                      .kind = OptionKind::kFlag,
                                                      .when_unset = "true",
                                                      .help = "leave them out of the text"});

inline constexpr OptionRow kCacheSaltRow = option_row<&SamplingParams::cache_salt>(
    {.name = "cache_salt",
     .kind = OptionKind::kText,
     .when_unset = "none",
     .help = "prefixes are found by requests with the same salt only",
     .field = {.min_bytes = 1, .max_bytes = 128, .alphabet = "_-"}});

}  // namespace sluice
