// The tables of the routes' fields, each with the functions that store its values.
//
// Used by request.cc and by the readers of further APIs. A body has what its request has, and what
// is only known once all of its members are read. Thread rule: tables are immutable.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/api/request/field.h"
#include "server/api/request/request.h"

namespace sluice::api {

struct CompletionBody : CompletionRequest {
  std::optional<int32_t> best_of;
  bool has_stream_options = false;  // with a member
};

struct ChatBody : ChatRequest {
  std::optional<int32_t> best_of;
  bool has_stream_options = false;  // with a member
  std::optional<int32_t> max_completion_tokens;
  std::optional<bool> add_generation_prompt;
  bool logprobs = false;
  std::optional<int32_t> top_logprobs;
};

// A body with a prompt or a conversation.
template <typename Request>
struct InputBody : Request {
  std::optional<std::string> prompt;
  Conversation conversation;  // messages is null if there are none
  std::optional<bool> add_generation_prompt;
  std::optional<bool> asked_special_tokens;
};
using TokenizeBody = InputBody<TokenizeRequest>;
using PinBody = InputBody<PinRequest>;

template <typename Body>
struct Field {
  OptionFacts facts;
  // Stores a value that check_field let through. Null: there is nothing to store.
  std::function<void(Body& body, Json&& value)> set = nullptr;
};

template <typename Body>
class FieldTable {
 public:
  explicit FieldTable(std::vector<Field<Body>> fields) : fields_(std::move(fields)) {
    for (const Field<Body>& field : fields_) {
      by_name_.emplace(field.facts.name, &field);
      facts_.push_back(field.facts);
    }
  }
  FieldTable(const FieldTable&) = delete;  // by_name_ points into fields_
  FieldTable& operator=(const FieldTable&) = delete;

  // Null if there is no such field.
  const Field<Body>* find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  std::span<const OptionFacts> facts() const { return facts_; }

 private:
  std::vector<Field<Body>> fields_;
  std::vector<OptionFacts> facts_;
  std::unordered_map<std::string_view, const Field<Body>*> by_name_;
};

const FieldTable<CompletionBody>& completion_fields();
const FieldTable<ChatBody>& chat_fields();
const FieldTable<TokenizeBody>& tokenize_fields();
const FieldTable<PinBody>& pin_fields();

// Fields without a value to store that completions and chats share: hints, and what is refused.
std::span<const OptionFacts> shared_refusals();
// Further ones of chats.
std::span<const OptionFacts> chat_refusals();

}  // namespace sluice::api
