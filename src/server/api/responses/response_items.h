// ResponseItems: the items of a response's output, and the events of a stream that tell of them.
//
// A stretch of thoughts is an item, and so are a stretch of text and a call. White space alone is
// no text: models write it between calls and at the end. An answer without any item has a message
// without text, so that a client that sends all items back has the turn. Bodies take the items,
// streams also the events; both have the same items, however the answer was cut into deltas.
// Used by ResponseAnswer. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_type.h"
#include "server/api/responses/response_facts.h"
#include "server/api/responses/response_logprobs.h"
#include "tokenizer/answer_scanner.h"

namespace sluice::api {

class ResponseItems {
 public:
  // Gets the type of an event, and its members but for the type and the number.
  using Write = std::function<void(std::string_view type, Json members)>;

  // The ids of items are made from `seed`. Aliasing: `facts` must outlive this object.
  ResponseItems(const ResponseFacts& facts, uint64_t seed) : facts_(&facts), seed_(seed) {}

  // The log-probabilities of the texts; without them the lists of them are empty. Order: before
  // `take`. Aliasing: must outlive this object.
  void set_logprobs(const ResponseLogprobs* logprobs) { logprobs_ = logprobs; }

  // Takes the next parts of the answer: opens, continues and ends items. Cost: linear in `events`,
  // and in an item's text once, at its end.
  void take(const std::vector<AnswerEvent>& events, const Write& write);
  // Ends the answer and the item that is open, if one is. `is_whole`: the model has ended it.
  void close(bool is_whole, const Write& write);

  // The items so far. One that is open counts as incomplete.
  Json list() const;

 private:
  struct Item {
    AnswerEvent::Kind kind;  // kThought, kContent or kCall
    std::string id;
    std::string name;     // of a call, as the model knows it
    std::string call_id;  // of a call
    std::string text;     // or the call's arguments
  };

  // Continues the item of this kind, or opens one once there is more than white space.
  void take_text(const AnswerEvent& event, const Write& write);
  void open(const AnswerEvent& event, const Write& write);
  void add(const std::string& text, const Write& write);
  // Ends the open item with this status.
  void end(const char* status, const Write& write);
  // The open item with its text, or as it is when it begins.
  Json item_json(const char* status, bool has_text) const;
  Json part_json(const std::string& text) const;
  // Of the text that is open, from this entry on.
  Json logprobs(size_t begin) const;
  // Members of an event that name the open item, and the part of it that has its text.
  Json place() const;
  Json part_place() const;

  const ResponseFacts* facts_;
  const ResponseLogprobs* logprobs_ = nullptr;
  const uint64_t seed_;
  Json ended_ = Json::array();
  std::optional<Item> open_;
  std::optional<AnswerEvent> space_;  // white space that may begin a text
  size_t num_texts_ = 0;              // that have ended
  size_t num_logprobs_ = 0;           // of the open text, that its deltas have had
};

}  // namespace sluice::api
