// AnswerChoice: what the outputs of one choice say, in the words of the API.
//
// Bodies read a whole answer with it at once, streams read it in parts; both get the same. Used by
// AnswerBody and ChunkWriter. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_type.h"
#include "server/api/answer/answer_delta.h"
#include "server/api/answer/answer_logprobs.h"
#include "server/api/answer/answer_options.h"
#include "server/api/answer/usage.h"
#include "tokenizer/answer_scanner.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

// One part of a choice, made of one or more outputs.
struct ChoicePart {
  // Of a completion only kContent, with the echoed prompt in the first part.
  std::vector<AnswerEvent> events;
  nlohmann::ordered_json logprobs;         // null, or as the route's choices have it
  nlohmann::ordered_json prompt_logprobs;  // null, or a list, once
  std::vector<int32_t> token_ids;          // if asked for

  // Appends the following part. Cost: linear in `next`.
  void append(ChoicePart next);
};

// Why an answer whose last output this is ended. A stop text of the request cuts an answer; an end
// token or a stop id is the model's own end.
AnswerEnd end_of(const RequestOutput& last);

class AnswerChoice {
 public:
  // Aliasing: both must outlive this object.
  AnswerChoice(const AnswerOptions& options, const Tokenizer& tokenizer, size_t index);

  // Takes the next part. Order: not after one that is finished.
  ChoicePart take(const AnswerDelta& delta);

  size_t index() const { return index_; }
  bool finished() const { return !finish_reason_.empty(); }
  // Whether it has the one call that it may have.
  bool is_full() const { return is_full_; }
  // "stop", "length", "tool_calls", "abort"; "" while it runs. It is "tool_calls" only if the model
  // ended the answer or the answer is full: what cut one off counts more than the calls before it.
  // The one call that the client has named is "stop".
  const std::string& finish_reason() const { return finish_reason_; }
  // The stop string or the stop id of the request that ended it; null otherwise.
  const nlohmann::ordered_json& stop_reason() const { return stop_reason_; }
  int64_t num_thought_tokens() const { return thoughts_.num_tokens(); }

 private:
  std::string echo() const;
  std::vector<AnswerEvent> scan(const RequestOutput& output);
  // Drops thoughts if the answer may have none.
  void keep_shown(std::vector<AnswerEvent>& events) const;
  // Drops what follows the first call, if the answer may have one only.
  void keep_first_call(std::vector<AnswerEvent>& events);
  void add_logprobs(const RequestOutput& output, ChoicePart& part);
  void finish(const RequestOutput& output);

  const AnswerOptions* options_;
  const Tokenizer* tokenizer_;
  size_t index_;
  AnswerScanner scanner_;
  ThoughtCounter thoughts_;
  LegacyLogprobs legacy_;
  bool has_begun_ = false;
  bool is_full_ = false;
  int32_t last_id_ = -1;
  std::string finish_reason_;
  nlohmann::ordered_json stop_reason_;
};

// The format by which the scanner of such an answer reads it: completions are all content, and
// thoughts may be, unless they are left out.
AnswerFormat scanner_format(const AnswerOptions& options);

// 24 hexadecimal digits: the same for the same arguments, and different calls of an answer have
// different ones. Each API puts its own word before them.
std::string call_digits(uint64_t seed, size_t choice, size_t call);
// "call_" and those digits.
std::string call_id(uint64_t seed, size_t choice, size_t call);

// Adds a text under the names that `field` says.
void add_thought(ReasoningField field, std::string_view text, nlohmann::ordered_json& message);

// {"index", "id", "type", "function": {"name", "arguments": ""}} for the kCall event `event`.
nlohmann::ordered_json call_json(const AnswerOptions& options, size_t choice, size_t call,
                                 const AnswerEvent& event);

}  // namespace sluice::api
