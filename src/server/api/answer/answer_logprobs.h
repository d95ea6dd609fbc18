// Log-probabilities in the shapes of OpenAI's completions and chats, and of vLLM's prompts.
//
// Used by AnswerChoice. Thread rule: free functions; a LegacyLogprobs belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_type.h"
#include "server/api/answer/answer_options.h"
#include "sluice/request_output.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

// An entry of RequestOutput::logprobs: the chosen token, then the likeliest ones.
using LogprobEntry = std::vector<TokenLogprob>;

// The double whose JSON has the digits that a float needs, not those of its conversion: short, and
// the same wherever the float is printed. -infinity, which JSON lacks, is -9999.0.
double json_logprob(float logprob);

// A token's text, special tokens included. Bytes that are no character give U+FFFD, so tokens that
// are parts of characters may have the same text.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

// The number of code points of well-formed UTF-8.
int64_t count_code_points(std::string_view utf8);

// {"token", "logprob", "bytes", "top_logprobs": [...]} for an entry, with at most `num_top` of the
// likeliest tokens. "bytes" are those of the token's text whatever `names` is.
nlohmann::ordered_json chat_logprob(const Tokenizer& tokenizer, const LogprobEntry& entry,
                                    int32_t num_top, TokenNames names = TokenNames::kTexts);

// A list with an entry for each token of the prompt: null for the first, then {"<id>": {"logprob",
// "rank", "decoded_token"}}. The rank of a token that is not among the likeliest is null.
nlohmann::ordered_json prompt_logprobs_json(const Tokenizer& tokenizer,
                                            const std::vector<LogprobEntry>& entries,
                                            int32_t num_top);

// The four lists tokens, token_logprobs, top_logprobs and text_offset of one choice, in parts.
//
// A token is named by its text, or if its bytes are no characters as "bytes:\xe2\x82". Names are
// different in the map of one position: a further token with a name that a likelier one has is
// "token_id:7". With TokenNames::kIds all are named so.
//
// text_offset counts code points from the beginning of the choice's text, the echoed prompt
// included. A token that brings no text has the offset of the next one; one that completes a
// character has the character's. Tokens after the end of the text (a stop string) have offsets
// beyond it.
class LegacyLogprobs {
 public:
  // Aliasing: `tokenizer` must outlive this object. `num_top`: likeliest tokens for each token.
  LegacyLogprobs(const Tokenizer& tokenizer, int32_t num_top, bool skip_special,
                 TokenNames names = TokenNames::kTexts);

  // The lists without entries.
  static nlohmann::ordered_json empty();

  // Appends the entries of an echoed prompt to `lists`. The first has no values. A special token at
  // the front that the prompt's text lacks (a BOS that was added) is an entry without width.
  // Order: before append_answer.
  void append_prompt(const AnswerPrompt& prompt, const std::vector<LogprobEntry>& entries,
                     nlohmann::ordered_json& lists);
  // Appends the entries of generated tokens.
  void append_answer(const std::vector<LogprobEntry>& entries, nlohmann::ordered_json& lists);

 private:
  void append(int32_t id, const LogprobEntry& entry, nlohmann::ordered_json& lists);

  const Tokenizer* tokenizer_;
  int32_t num_top_;
  TokenNames names_;
  Detokenizer detokenizer_;
  int64_t offset_ = 0;
};

}  // namespace sluice::api
