#include "server/api/responses/response_logprobs.h"

#include <utility>

#include "server/api/answer/answer_choice.h"

namespace sluice::api {

ResponseLogprobs::ResponseLogprobs(const AnswerOptions& options, const Tokenizer& tokenizer)
    : scanner_(scanner_format(options), options.tools),
      detokenizer_(tokenizer, options.skip_special_tokens) {}

void ResponseLogprobs::take(const std::vector<int32_t>& ids, Json entries,
                            std::optional<AnswerEnd> end) {
  for (size_t i = 0; i < ids.size() && i < entries.size(); ++i) {
    const std::string text = detokenizer_.push(ids[i]);
    waiting_.push_back({std::move(entries[i]), text.size()});
    place(scanner_.push(text));
  }
  if (!end) return;
  place(scanner_.push(detokenizer_.finish()));
  place(scanner_.finish(*end));
  leave_text();
}

// A token may end one text and begin the next; it counts for the first.
void ResponseLogprobs::place(const std::vector<AnswerEvent>& events) {
  if (events.empty()) return;
  for (const AnswerEvent& event : events) {
    if (event.kind != AnswerEvent::Kind::kContent) {
      leave_text();
      continue;
    }
    if (!in_text_) texts_.emplace_back();
    in_text_ = true;
    Text& text = texts_.back();
    text.has_characters |= event.text.find_first_not_of(" \t\n\r") != std::string::npos;
    take_waiting(text, event.text.size());
  }
  waiting_.clear();
}

// Tokens without a text of their own are the first parts of a character.
void ResponseLogprobs::take_waiting(Text& text, size_t num_bytes) {
  size_t begin = waiting_.size(), num_covered = 0;
  while (begin > 0 && (num_covered < num_bytes || waiting_[begin - 1].num_bytes == 0)) {
    num_covered += waiting_[--begin].num_bytes;
  }
  for (; begin < waiting_.size(); ++begin) {
    text.entries.push_back(std::move(waiting_[begin].entry));
  }
  waiting_.clear();
}

void ResponseLogprobs::leave_text() {
  if (std::exchange(in_text_, false) && !texts_.back().has_characters) texts_.pop_back();
}

const Json& ResponseLogprobs::of_text(size_t number) const {
  static const Json kNone = Json::array();
  return number < texts_.size() ? texts_[number].entries : kNone;
}

}  // namespace sluice::api
