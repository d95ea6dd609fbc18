// Texts are moved, not copied: a body may be megabytes of them.
#include "server/api/messages/messages_conversation.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "core/printable.h"
#include "io/json.h"
#include "io/json_type.h"
#include "server/api/request/body_reader.h"
#include "server/api/request/skipped_types.h"

namespace sluice::api {
namespace {

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";
constexpr size_t kMaxToolName = 256;

[[noreturn]] void refuse(std::string_view place, std::string_view value, std::string_view allowed) {
  refuse_field(place, fmt::format("{} is {}; it must be {}", place, value, allowed));
}

// The member, or null. One that is null counts as missing.
Json* find(Json& object, const char* name) {
  const auto member = object.find(name);
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

std::string described(const Json* value) {
  return value == nullptr ? "missing" : describe_json(*value);
}

std::string& text_of(Json& object, const char* name, const std::string& place) {
  Json* value = find(object, name);
  if (value == nullptr || !value->is_string()) {
    refuse(fmt::format("{}.{}", place, name), described(value), "a text");
  }
  return value->get_ref<std::string&>();
}

// The text of a block; "" for null.
std::string& block_text(Json& block, const char* name, const std::string& place) {
  const auto text = block.find(name);
  if (text != block.end() && text->is_null()) *text = "";
  return text_of(block, name, place);
}

// Calls `take(block, type, place)` for each block of a content, which may be one text; null is an
// empty one.
template <typename Take>
void for_each_block(Json& content, const std::string& place, Take take) {
  if (content.is_null()) content = "";
  if (content.is_string()) {
    Json block = {{"type", "text"}};
    block["text"] = std::move(content);
    return take(block, "text", place);
  }
  if (!content.is_array()) refuse(place, describe_json(content), "a text or a list of blocks");
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", place, i);
    Json& block = content[i];
    if (!block.is_object()) refuse(at, describe_json(block), "a block, which is an object");
    take(block, text_of(block, "type", at), at);
  }
}

[[noreturn]] void refuse_block(std::string_view type, const std::string& place,
                               std::string_view allowed) {
  refuse_field(place, fmt::format("{} has the type \"{}\", which Sluice does not support here; "
                                  "give {}",
                                  place, printable(type), allowed));
}

// Messages as they grow, block by block. A content is a list of parts until the end.
class Messages {
 public:
  void add_text(std::string_view role, std::string&& text) {
    Json part = {{"type", "text"}};
    part["text"] = std::move(text);
    turn(role)["content"].push_back(std::move(part));
  }

  // An empty one is what clients keep of thoughts that they were not shown.
  void add_thought(std::string&& text) {
    if (text.empty()) return;
    Json& all = turn("assistant")["reasoning_content"];
    if (all.is_null()) {
      all = std::move(text);
    } else {
      all.get_ref<std::string&>().append("\n").append(text);
    }
  }

  void add_call(std::string&& id, std::string&& name, Json&& input) {
    names_[id] = name;
    Json call = {{"id", std::move(id)}, {"type", "function"}};
    call["function"]["name"] = std::move(name);
    call["function"]["arguments"] = std::move(input);
    turn("assistant")["tool_calls"].push_back(std::move(call));
  }

  // Each result is a message of its own.
  void add_result(const std::string& id, Json&& parts) {
    Json message = {{"role", "tool"}, {"tool_call_id", id}};
    if (const auto name = names_.find(id); name != names_.end()) message["name"] = name->second;
    message["content"] = std::move(parts);
    all_.push_back(std::move(message));
  }

  // The message that a block of this role belongs to.
  Json& turn(std::string_view role) {
    if (all_.empty() || all_.back()["role"] != role) {
      all_.push_back({{"role", role}, {"content", Json::array()}});
    }
    return all_.back();
  }

  // One part is a plain text, which every template takes.
  Json take() {
    for (Json& message : all_) {
      Json& content = message["content"];
      if (content.empty()) {
        content = "";
      } else if (content.size() == 1) {
        content = Json(std::move(content[0]["text"]));
      }
    }
    return std::move(all_);
  }

 private:
  Json all_ = Json::array();
  std::unordered_map<std::string, std::string> names_;  // of tools, by the ids of their calls
};

void take_system(Messages& messages, Json& content, const std::string& place) {
  for_each_block(content, place, [&](Json& block, std::string_view type, const std::string& at) {
    if (type != "text") refuse_block(type, at, "text");
    std::string& text = block_text(block, "text", at);
    if (!text.starts_with(kBillingHeader)) messages.add_text("system", std::move(text));
  });
}

void take_result(Messages& messages, Json& block, const std::string& place) {
  const std::string& id = text_of(block, "tool_use_id", place);
  Json parts = Json::array();
  if (Json* content = find(block, "content")) {
    for_each_block(*content, place + ".content",
                   [&](Json& part, std::string_view type, const std::string& at) {
                     if (type != "text") refuse_block(type, at, "text");
                     Json text = {{"type", "text"}};
                     text["text"] = std::move(block_text(part, "text", at));
                     parts.push_back(std::move(text));
                   });
  }
  messages.add_result(id, std::move(parts));
}

void take_call(Messages& messages, Json& block, const std::string& place) {
  std::string& id = text_of(block, "id", place);
  std::string& name = text_of(block, "name", place);
  Json* input = find(block, "input");
  if (input == nullptr || !input->is_object()) {
    refuse(place + ".input", described(input), "an object");
  }
  messages.add_call(std::move(id), std::move(name), std::move(*input));
}

void take_user(Messages& messages, Json& content, const std::string& place) {
  for_each_block(content, place, [&](Json& block, std::string_view type, const std::string& at) {
    if (type == "tool_result") return take_result(messages, block, at);
    if (type != "text") refuse_block(type, at, "text or tool_result");
    messages.add_text("user", std::move(block_text(block, "text", at)));
  });
}

void take_assistant(Messages& messages, Json& content, const std::string& place) {
  messages.turn("assistant");  // also if all of its blocks are left out
  for_each_block(content, place, [&](Json& block, std::string_view type, const std::string& at) {
    if (type == "redacted_thinking") return;
    if (type == "tool_use") return take_call(messages, block, at);
    if (type == "thinking") {
      return messages.add_thought(std::move(block_text(block, "thinking", at)));
    }
    if (type != "text") refuse_block(type, at, "text, thinking or tool_use");
    messages.add_text("assistant", std::move(block_text(block, "text", at)));
  });
}

// A tool with the schema of its input.
bool is_function(Json& tool, const std::string& place) {
  return find(tool, "type") == nullptr || text_of(tool, "type", place) == "custom";
}

Json function_of(Json& tool, const std::string& place) {
  std::string& name = text_of(tool, "name", place);
  if (name.empty() || name.size() > kMaxToolName) {
    refuse(place + ".name", describe_json(name),
           fmt::format("a text of 1 to {} bytes", kMaxToolName));
  }
  Json* schema = find(tool, "input_schema");
  if (schema == nullptr || !schema->is_object()) {
    refuse(place + ".input_schema", described(schema), "an object, the JSON schema of the input");
  }
  Json function;
  function["name"] = std::move(name);
  if (find(tool, "description") != nullptr) {
    function["description"] = std::move(text_of(tool, "description", place));
  }
  function["parameters"] = std::move(*schema);
  return {{"type", "function"}, {"function", std::move(function)}};
}

}  // namespace

Json chat_messages(Json&& system, Json&& messages) {
  Messages all;
  if (!system.is_null()) take_system(all, system, "system");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string place = fmt::format("messages[{}]", i);
    const std::string role = text_of(messages[i], "role", place);
    const auto content = messages[i].find("content");
    if (content == messages[i].end()) {
      refuse(place + ".content", "missing", "a text, null or a list of blocks");
    }
    const std::string at = place + ".content";
    if (role == "user") {
      take_user(all, *content, at);
    } else if (role == "assistant") {
      take_assistant(all, *content, at);
    } else if (role == "system") {
      take_system(all, *content, at);
    } else {
      refuse(place + ".role", describe_json(role), "user, assistant or system");
    }
  }
  return all.take();
}

Json chat_tools(Json&& tools, std::string& skipped, std::vector<std::string>& strict) {
  Json functions = Json::array();
  SkippedTypes others;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    if (is_function(tools[i], place)) {
      const bool is_held = is_strict(tools[i]);
      functions.push_back(function_of(tools[i], place));
      if (is_held) strict.push_back(functions.back()["function"]["name"].get<std::string>());
      continue;
    }
    others.add(text_of(tools[i], "type", place));
  }
  skipped = others.take();
  return functions;
}

}  // namespace sluice::api
