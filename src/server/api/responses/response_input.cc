// Items are read in their order. What the assistant did waits in a turn until an item of another
// role, an output or the end closes it.
#include "server/api/responses/response_input.h"

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "io/json.h"
#include "io/json_type.h"
#include "server/api/responses/response_facts.h"
#include "server/api/responses/response_text.h"
#include "tokenizer/chat_messages.h"

namespace sluice::api {
namespace {

constexpr std::array<std::string_view, 2> kTextParts = {"input_text", "output_text"};
constexpr std::array<std::string_view, 2> kThoughtParts = {"reasoning_text", "text"};

// Null is an empty content; none at all is a mistake.
std::string content_of(const Json& item, const char* name, std::span<const std::string_view> types,
                       const std::string& place) {
  const std::string at = fmt::format("{}.{}", place, name);
  if (!item.contains(name)) {
    refuse_field(at, at + " is missing; it must be a text, null or a list of parts");
  }
  return joined_text(item[name], types, at);
}

Json arguments_of(const Json& item, const std::string& place) {
  try {
    return call_arguments(item, place);
  } catch (const Error& error) {
    refuse_field(place, error.message());
  }
}

void append_line(std::string& text, std::string_view line, std::string_view end) {
  if (!text.empty()) text += end;
  text += line;
}

// What the assistant says until another message follows.
struct Turn {
  std::string thought;
  std::string content;
  Json calls = Json::array();
};

// Messages have what the checks of chats let through, so that an error of the template's own is the
// only one that comes later.
class MessageWriter {
 public:
  void add_system(std::string_view text) {
    end_turn();
    const bool joins = messages_.size() == 1 && messages_[0]["role"] == "system";
    if (!joins) return add_message("system", text);
    append_line(messages_[0]["content"].get_ref<std::string&>(), text, "\n\n");
  }

  void add_message(std::string_view role, std::string_view text) {
    end_turn();
    messages_.push_back({{"role", role}, {"content", text}});
  }

  // Items with a role may leave out the type.
  void add(const Json& item, const std::string& place) {
    const std::string type = item.contains("role") ? optional_text(item, "type", place)
                                                   : text_member(item, "type", place);
    if (type.empty() || type == "message") return add_message_item(item, place);
    if (type == "reasoning") return add_thought(item, place);
    if (type == "function_call") return add_call(item, place);
    if (type == "function_call_output") return add_output(item, place);
    refuse_field(place, fmt::format("{}.type is {}; it must be message, reasoning, function_call "
                                    "or function_call_output",
                                    place, describe_json(type)));
  }

  Json take() {
    end_turn();
    return std::move(messages_);
  }

 private:
  void add_message_item(const Json& item, const std::string& place) {
    const std::string role = text_member(item, "role", place);
    const std::string text = content_of(item, "content", kTextParts, place);
    if (role == "system" || role == "developer") return add_system(text);
    if (role == "user") return add_message(role, text);
    if (role != "assistant") {
      refuse_field(place, fmt::format("{}.role is {}; it must be user, assistant, system or "
                                      "developer",
                                      place, describe_json(role)));
    }
    append_line(turn().content, text, "\n");
  }

  // Thoughts that another server has encrypted are in no member that is read here.
  void add_thought(const Json& item, const std::string& place) {
    if (!item.contains("content")) return;
    const std::string text = content_of(item, "content", kThoughtParts, place);
    if (!text.empty()) append_line(turn().thought, text, "\n");
  }

  void add_call(const Json& item, const std::string& place) {
    const std::string id = text_member(item, "call_id", place);
    const std::string name =
        flat_name(optional_text(item, "namespace", place), text_member(item, "name", place));
    names_[id] = name;
    Json function = {{"name", name}, {"arguments", arguments_of(item, place)}};
    turn().calls.push_back({{"id", id}, {"type", "function"}, {"function", std::move(function)}});
  }

  // Some templates write the name of the function, which only its call has. A client that has
  // shortened its history may send outputs whose calls are gone.
  void add_output(const Json& item, const std::string& place) {
    const std::string id = text_member(item, "call_id", place);
    const std::string text = content_of(item, "output", kTextParts, place);
    end_turn();
    Json message = {{"role", "tool"}, {"tool_call_id", id}};
    if (const auto name = names_.find(id); name != names_.end()) message["name"] = name->second;
    message["content"] = text;
    messages_.push_back(std::move(message));
  }

  Turn& turn() {
    if (!turn_) turn_.emplace();
    return *turn_;
  }

  void end_turn() {
    if (!turn_) return;
    const Turn turn = *std::exchange(turn_, std::nullopt);
    Json message = {{"role", "assistant"}, {"content", turn.content}};
    if (!turn.thought.empty()) message["reasoning_content"] = turn.thought;
    if (!turn.calls.empty()) message["tool_calls"] = turn.calls;
    messages_.push_back(std::move(message));
  }

  Json messages_ = Json::array();
  std::optional<Turn> turn_;
  std::map<std::string, std::string> names_;  // of functions, by the id of their call
};

}  // namespace

Json messages_of(const Json& input, const std::string& instructions) {
  MessageWriter writer;
  if (!instructions.empty()) writer.add_system(instructions);
  if (input.is_string()) {
    writer.add_message("user", input.get_ref<const std::string&>());
  } else {
    for (size_t i = 0; i < input.size(); ++i) writer.add(input[i], fmt::format("input[{}]", i));
  }
  return writer.take();
}

}  // namespace sluice::api
