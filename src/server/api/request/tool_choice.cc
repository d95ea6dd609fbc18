// Words, and objects with a type.
#include "server/api/request/tool_choice.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "io/json.h"
#include "io/json_type.h"

namespace sluice::api {
namespace {

constexpr size_t kMaxAllowed = 512;  // as many as tools may have

constexpr std::string_view kSchema = R"({"anyOf": [
  {"enum": ["none", "auto", "required"]},
  {"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"},
    "function": {"type": "object", "required": ["name"],
                 "properties": {"name": {"type": "string", "minLength": 1}}}}},
  {"type": "object", "required": ["type", "name"], "not": {"required": ["function"]},
   "properties": {"type": {"const": "function"}, "name": {"type": "string", "minLength": 1}}},
  {"type": "object", "required": ["type", "allowed_tools"], "properties": {
    "type": {"const": "allowed_tools"}, "allowed_tools": {
      "type": "object", "required": ["mode", "tools"], "properties": {
        "mode": {"enum": ["auto", "required"]}, "tools": {
          "type": "array", "minItems": 1, "maxItems": 512, "items": {
            "type": "object", "required": ["function"], "properties": {"function": {
              "type": "object", "required": ["name"],
              "properties": {"name": {"type": "string", "minLength": 1}}}}}}}}}},
  {"type": "object", "required": ["type", "mode", "tools"], "not": {"required": ["allowed_tools"]},
   "properties": {"type": {"const": "allowed_tools"}, "mode": {"enum": ["auto", "required"]},
     "tools": {"type": "array", "minItems": 1, "maxItems": 512, "items": {
       "type": "object", "required": ["name"], "not": {"required": ["function"]},
       "properties": {"name": {"type": "string", "minLength": 1}}}}}}]})";

[[noreturn]] void refuse(const std::string& place, const Json* value, std::string_view allowed) {
  refuse_field(place, fmt::format("{} is {}; it must be {}", place,
                                  value == nullptr ? "missing" : describe_json(*value), allowed));
}

const Json* member_of(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string text_of(const Json& object, const char* name, const std::string& place,
                    std::string_view allowed) {
  const Json* const value = member_of(object, name);
  if (value == nullptr || !value->is_string()) {
    refuse(fmt::format("{}.{}", place, name), value, allowed);
  }
  return value->get<std::string>();
}

// A function of chats has its name within an object of its own, one of responses beside its type.
std::string name_of(const Json& tool, const std::string& place) {
  constexpr std::string_view kAllowed = "the name of a function";
  const Json* const function = member_of(tool, "function");
  if (function == nullptr) return text_of(tool, "name", place, kAllowed);
  const std::string inner = place + ".function";
  if (!function->is_object()) refuse(inner, function, "an object with a name");
  return text_of(*function, "name", inner, kAllowed);
}

ToolChoice choice_of(const Json& word, const std::string& place, std::string_view allowed) {
  if (word == "none") return ToolChoice::kNone;
  if (word == "auto") return ToolChoice::kAuto;
  if (word == "required") return ToolChoice::kRequired;
  refuse(place, &word, allowed);
}

// The functions that may be called, of those that the model is told of.
void take_allowed(ChatRequest& request, const Json& value, const std::string& outer) {
  const Json* const inner = member_of(value, "allowed_tools");
  const Json& allowed = inner != nullptr ? *inner : value;
  const std::string place = inner != nullptr ? outer + ".allowed_tools" : outer;
  if (!allowed.is_object()) refuse(place, inner, "an object with mode and tools");
  constexpr std::string_view kModes = "auto or required";
  const std::string mode = text_of(allowed, "mode", place, kModes);
  if (mode == "none") refuse(place + ".mode", member_of(allowed, "mode"), kModes);
  request.tool_choice = choice_of(mode, place + ".mode", kModes);
  const Json* const tools = member_of(allowed, "tools");
  if (tools == nullptr || !tools->is_array() || tools->empty() || tools->size() > kMaxAllowed) {
    refuse(place + ".tools", tools, fmt::format("a list of 1 to {} functions", kMaxAllowed));
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string at = fmt::format("{}.tools[{}]", place, i);
    const Json& tool = (*tools)[i];
    if (!tool.is_object()) refuse(at, &tool, "a function");
    request.allowed_tools.push_back(name_of(tool, at));
  }
}

// Linear, so that lists of both have a limit.
bool is_known(const Json& tools, const std::string& name) {
  return std::ranges::any_of(
      tools, [&](const Json& tool) { return tool.at("function").at("name") == name; });
}

}  // namespace

OptionFacts tool_choice_facts() {
  return {.name = "tool_choice",
          .when_unset = "auto",
          .help = "whether the answer may call tools, must, or which one",
          .field = {.form = FieldForm::kAny, .schema = kSchema}};
}

// Types of tools that servers run are refused: this server runs none.
void take_tool_choice(ChatRequest& request, const Json& value) {
  const std::string place = "tool_choice";
  constexpr std::string_view kAllowed = "none, auto, required, a function or allowed_tools";
  if (!value.is_object()) {
    request.tool_choice = choice_of(value, place, kAllowed);
    return;
  }
  const std::string type = text_of(value, "type", place, "function or allowed_tools");
  if (type == "allowed_tools") return take_allowed(request, value, place);
  if (type != "function") {
    refuse(place + ".type", member_of(value, "type"), "function or allowed_tools");
  }
  request.tool_choice = ToolChoice::kNamed;
  request.allowed_tools = {name_of(value, place)};
}

// A name that is not among the tools would be a grammar without a function.
void check_tool_choice(const ChatRequest& request, std::string_view place) {
  const Json& tools = request.conversation.tools;
  if (request.tool_choice == ToolChoice::kRequired && tools.empty()) {
    refuse_field(place,
                 fmt::format("{} asks for a call, but there are no tools; give some", place));
  }
  for (const std::string& name : request.allowed_tools) {
    if (is_known(tools, name)) continue;
    refuse_field(place,
                 fmt::format("{} names {}, which is not among tools", place, describe_json(name)));
  }
}

}  // namespace sluice::api
