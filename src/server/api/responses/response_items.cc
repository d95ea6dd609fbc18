// At most one item is open; events of text, deltas and ends are about it. The type of an event is
// made from what the item's kind is called, so all kinds go through the same functions.
#include "server/api/responses/response_items.h"

#include <utility>

#include "core/error.h"
#include "server/api/answer/answer_choice.h"

namespace sluice::api {
namespace {

using Kind = AnswerEvent::Kind;

constexpr const char* kSpace = " \t\n\r";
constexpr const char* kInProgress = "in_progress";
constexpr const char* kCompleted = "completed";
constexpr const char* kIncomplete = "incomplete";

// What the API calls the items of a kind, their text and the events of it.
struct Names {
  const char* id_prefix;
  const char* item;
  const char* part;  // null: the text is a member of the item
  const char* text_event;
};

const Names& names_of(Kind kind) {
  static constexpr Names kThought = {"rs_", "reasoning", "reasoning_text",
                                     "response.reasoning_text"};
  static constexpr Names kContent = {"msg_", "message", "output_text", "response.output_text"};
  static constexpr Names kCall = {"fc_", "function_call", nullptr,
                                  "response.function_call_arguments"};
  return kind == Kind::kThought ? kThought : kind == Kind::kContent ? kContent : kCall;
}

}  // namespace

// Two underscores, as agents write such names themselves: templates and models take no other mark.
std::string flat_name(std::string_view space, std::string_view name) {
  return space.empty() ? std::string(name) : std::string(space) + "__" + std::string(name);
}

void ResponseItems::take(const std::vector<AnswerEvent>& events, const Write& write) {
  for (const AnswerEvent& event : events) {
    switch (event.kind) {
      case Kind::kThought:
      case Kind::kContent:
        take_text(event, write);
        break;
      case Kind::kCall:
        open(event, write);
        break;
      case Kind::kArguments:
        add(event.text, write);
        break;
      case Kind::kCallEnd:
        end(kCompleted, write);
        break;
    }
  }
}

void ResponseItems::close(bool is_whole, const Write& write) {
  if (!open_ && ended_.empty()) open({Kind::kContent, {}}, write);
  if (open_) end(is_whole ? kCompleted : kIncomplete, write);
}

// A stream cannot take an item back, so white space waits until something follows it.
void ResponseItems::take_text(const AnswerEvent& event, const Write& write) {
  if (open_ && open_->kind == event.kind) return add(event.text, write);
  if (!space_ || space_->kind != event.kind) space_ = AnswerEvent{event.kind, {}};
  space_->text += event.text;
  if (event.text.find_first_not_of(kSpace) == event.text.npos) return;
  const std::string text = std::move(space_->text);
  open(event, write);
  add(text, write);
}

// What follows an item ends it.
void ResponseItems::open(const AnswerEvent& event, const Write& write) {
  if (open_) end(kCompleted, write);
  space_.reset();
  const size_t index = ended_.size();
  Item& item = open_.emplace();
  item.kind = event.kind;
  // A response has the choice 0 alone, whose digits are those of its calls.
  item.id = names_of(item.kind).id_prefix + call_digits(seed_, 1, index);
  if (item.kind == Kind::kCall) {
    item.name = event.text;
    item.call_id = call_id(seed_, 0, index);
  }
  Json added = {{"output_index", index}, {"item", item_json(kInProgress, false)}};
  write("response.output_item.added", std::move(added));
  if (names_of(item.kind).part == nullptr) return;
  Json part = part_place();
  part["part"] = part_json("");
  write("response.content_part.added", std::move(part));
}

void ResponseItems::add(const std::string& text, const Write& write) {
  SLUICE_CHECK(open_.has_value(), "arguments without a call");
  open_->text += text;
  const bool is_content = open_->kind == Kind::kContent;
  Json delta = names_of(open_->kind).part == nullptr ? place() : part_place();
  delta["delta"] = text;
  if (is_content) {
    delta["logprobs"] = logprobs(num_logprobs_);
    num_logprobs_ += delta["logprobs"].size();
  }
  write(std::string(names_of(open_->kind).text_event) + ".delta", std::move(delta));
}

// The events repeat the whole text: clients may read these alone and skip all deltas.
void ResponseItems::end(const char* status, const Write& write) {
  SLUICE_CHECK(open_.has_value(), "the end of a call without its begin");
  const Names& names = names_of(open_->kind);
  const bool has_part = names.part != nullptr;
  Json text = has_part ? part_place() : place();
  text[has_part ? "text" : "arguments"] = open_->text;
  if (open_->kind == Kind::kContent) text["logprobs"] = logprobs(0);
  write(std::string(names.text_event) + ".done", std::move(text));
  if (has_part) {
    Json part = part_place();
    part["part"] = part_json(open_->text);
    write("response.content_part.done", std::move(part));
  }
  Json item = item_json(status, true);
  write("response.output_item.done", {{"output_index", ended_.size()}, {"item", item}});
  ended_.push_back(std::move(item));
  if (open_->kind == Kind::kContent) ++num_texts_;
  num_logprobs_ = 0;
  open_.reset();
}

// An item begins without text and without parts: both have events of their own.
Json ResponseItems::item_json(const char* status, bool has_text) const {
  const Item& open = *open_;
  Json item = {{"id", open.id}, {"type", names_of(open.kind).item}, {"status", status}};
  if (open.kind == Kind::kCall) {
    item["call_id"] = open.call_id;
    item["name"] = open.name;
    if (const auto spaced = facts_->in_spaces.find(open.name); spaced != facts_->in_spaces.end()) {
      item["name"] = spaced->second.name;
      item["namespace"] = spaced->second.space;
    }
    item["arguments"] = has_text ? open.text : "";
    return item;
  }
  if (open.kind == Kind::kThought) {
    item["summary"] = Json::array();
  } else {
    item["role"] = "assistant";
  }
  item["content"] = Json::array();
  if (has_text) item["content"].push_back(part_json(open.text));
  return item;
}

// Clients require the lists of annotations, which nothing here fills, and of log-probabilities.
Json ResponseItems::part_json(const std::string& text) const {
  Json part = {{"type", names_of(open_->kind).part}, {"text", text}};
  if (open_->kind == Kind::kContent) {
    part["annotations"] = Json::array();
    part["logprobs"] = text.empty() ? Json::array() : logprobs(0);
  }
  return part;
}

Json ResponseItems::logprobs(size_t begin) const {
  Json list = Json::array();
  if (logprobs_ == nullptr) return list;
  const Json& all = logprobs_->of_text(num_texts_);
  for (size_t i = begin; i < all.size(); ++i) list.push_back(all[i]);
  return list;
}

Json ResponseItems::place() const {
  return {{"item_id", open_->id}, {"output_index", ended_.size()}};
}

Json ResponseItems::part_place() const {
  Json json = place();
  json["content_index"] = 0;
  return json;
}

Json ResponseItems::list() const {
  Json items = ended_;
  if (open_) items.push_back(item_json(kIncomplete, true));
  return items;
}

}  // namespace sluice::api
