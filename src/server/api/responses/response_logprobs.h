// ResponseLogprobs: which log-probabilities belong to which text of a response.
//
// The tokens of an answer are also those of thoughts, calls and tags. This reads the text of each
// token as the answer is read, so what a text gets does not depend on how the answer was cut into
// deltas. Used by ResponseAnswer, only if they are asked for. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json_type.h"
#include "server/api/answer/answer_options.h"
#include "server/api/request/field.h"
#include "tokenizer/answer_scanner.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

class ResponseLogprobs {
 public:
  // Aliasing: `tokenizer` must outlive this object.
  ResponseLogprobs(const AnswerOptions& options, const Tokenizer& tokenizer);

  // Takes the next tokens and the entry of each; of the last ones also why the answer ended. Order:
  // before the items of the same part.
  void take(const std::vector<int32_t>& ids, Json entries, std::optional<AnswerEnd> end);

  // The entries of the text with this number so far: a list.
  const Json& of_text(size_t number) const;

 private:
  struct Text {
    Json entries = Json::array();
    bool has_characters = false;  // white space alone is no text, as in ResponseItems
  };

  struct Token {
    Json entry;
    size_t num_bytes = 0;  // of the text that became known with it
  };

  // Reads on. Tokens that wait for what they are wait no more once there are events; those of tags
  // and of space around them are of no text.
  void place(const std::vector<AnswerEvent>& events);
  // The newest that wait are those of the text: as many as have its bytes.
  void take_waiting(Text& text, size_t num_bytes);
  void leave_text();

  AnswerScanner scanner_;
  Detokenizer detokenizer_;
  std::vector<Text> texts_;
  bool in_text_ = false;  // the last of them goes on
  std::vector<Token> waiting_;
};

}  // namespace sluice::api
