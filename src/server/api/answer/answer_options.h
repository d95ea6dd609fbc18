// AnswerOptions: what the bodies and streams of an answer need to know of its request.
//
// Made from a request once it is valid; read by everything in server/api that writes answers.
// Thread rule: a value that does not change while the answer is produced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/limits.h"
#include "tokenizer/answer_scanner.h"

namespace sluice::api {

enum class AnswerRoute { kCompletions, kChat };

// The members that hold the thoughts of a chat's answer.
enum class ReasoningField {
  kBoth,              // reasoning_content and reasoning, with the same text
  kReasoningContent,  // the name that most clients read
  kReasoning,         // the name that vLLM writes
  kNone,              // thoughts are not split off: content has them, with their tags
};

// By the names of the option: both, reasoning_content, reasoning, none.
std::optional<ReasoningField> find_reasoning_field(std::string_view name);

// How log-probabilities name tokens.
enum class TokenNames {
  kTexts,
  kIds,  // "token_id:7"
};

struct AnswerPrompt {
  std::vector<int32_t> ids;
  // For echo: the prompt as the client wrote it. Absent if it gave ids; echo then decodes them.
  std::optional<std::string> text;
};

struct AnswerOptions {
  AnswerRoute route = AnswerRoute::kChat;
  std::string request_id;  // "chatcmpl-" or "cmpl-" is put before it
  int64_t created = 0;     // Unix time in seconds
  std::string model;
  std::string system_fingerprint;  // what made the answer, of OpenAI's completions and chats
  http::TimePoint queued;          // times of prompts count from here, waiting included

  // Choice i of prompt p has the index p * n + i. A chat has one prompt.
  std::vector<AnswerPrompt> prompts;
  size_t n = 1;

  // Chat only. The scanner gets `tools` if format.tools is set.
  AnswerFormat format;
  CallableTools tools;
  ReasoningField reasoning_field = ReasoningField::kBoth;
  bool include_thoughts = true;  // false: they are split off and left out, but counted
  uint64_t call_seed = 0;        // random; the ids of calls are made from it
  // The answer ends with its first complete call; what the model writes after it is left out.
  bool single_call = false;
  // The client has named the one function that is called: OpenAI's chats then end with "stop".
  bool named_call = false;

  // Numbers of likeliest tokens. The outputs may have more; a chat's 0 prints the chosen ones.
  std::optional<int32_t> logprobs;
  std::optional<int32_t> prompt_logprobs;
  TokenNames token_names = TokenNames::kTexts;

  // Completions only. With log-probabilities, outputs must have those of the prompt.
  bool echo = false;
  // max_tokens was 0: what the engine generated all the same is left out.
  bool prompt_only = false;
  bool return_token_ids = false;
  bool skip_special_tokens = true;
  bool include_stop_text = false;  // the text ends with the stop string that ended it
  std::vector<int32_t> stop_token_ids;
  // The room of the prompt, of several the least, where the request's limit exceeded it.
  std::optional<int32_t> clamped_max_tokens;

  // Streams only.
  bool include_usage = false;
  bool continuous_usage = false;  // only with include_usage
  bool return_progress = false;
  bool timings_per_token = false;

  size_t num_choices() const { return prompts.size() * n; }
  const AnswerPrompt& prompt_of(size_t choice) const { return prompts[choice / n]; }
};

}  // namespace sluice::api
