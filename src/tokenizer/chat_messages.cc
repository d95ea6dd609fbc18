// Every check comes before the change that relies on it; what no check mentions is passed on.
#include "tokenizer/chat_messages.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "io/json.h"
#include "io/json_type.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  fail(ErrorCode::kInvalidArgument, "{}", fmt::format(format, std::forward<Args>(args)...));
}

// Sets the role, as templates know it.
void prepare_role(Json& message, const std::string& place) {
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) refuse("{}.role is missing or no text", place);
  const auto& name = role->get_ref<const std::string&>();
  if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end()) {
    refuse("{}.role is \"{}\"; it must be system, developer, user, assistant or tool", place,
           printable(name));
  }
  if (name == "developer") *role = "system";
}

void check_part(const Json& part, const std::string& place) {
  if (!part.is_object()) refuse("{} is {}; it must be an object", place, describe_json(part));
  const auto type = part.find("type");
  if (type == part.end() || *type != "text") {
    refuse("{}.type is {}; only \"text\" is supported", place,
           type == part.end() ? "missing" : describe_json(*type));
  }
  const auto text = part.find("text");
  if (text == part.end() || !(text->is_string() || text->is_null())) {
    refuse("{}.text is missing or no text", place);
  }
}

// Makes a text of a content that is missing or null, of which some templates write "None". Joins
// the parts of a content unless the template takes them.
void prepare_content(Json& message, const std::string& place, bool takes_parts) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    message["content"] = "";
    return;
  }
  if (content->is_string()) return;
  if (!content->is_array()) {
    refuse("{}.content is {}; it must be a text, null or a list of parts", place,
           describe_json(*content));
  }
  std::string joined;
  for (size_t i = 0; i < content->size(); ++i) {
    check_part((*content)[i], fmt::format("{}.content[{}]", place, i));
    if (i > 0) joined += '\n';
    if ((*content)[i]["text"].is_null()) (*content)[i]["text"] = "";
    joined += (*content)[i]["text"].get_ref<const std::string&>();
  }
  if (!takes_parts) *content = std::move(joined);
}

// Makes objects of the arguments, since templates write them as JSON. A message without calls has
// no list of them, since templates ask whether it is there.
void prepare_calls(Json& message, const std::string& place, const TemplateForms& forms) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (!calls->is_null() && !calls->is_array())
    refuse("{}.tool_calls is {}; it must be a list", place, describe_json(*calls));
  if (calls->empty()) {
    message.erase(calls);
    return;
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    const std::string call = fmt::format("{}.tool_calls[{}]", place, i);
    Json& entry = (*calls)[i];
    if (!entry.is_object() || !entry.contains("function") || !entry["function"].is_object()) {
      refuse("{} has no object \"function\"", call);
    }
    Json& function = entry["function"];
    if (!function.contains("name") || !function["name"].is_string()) {
      refuse("{}.function.name is missing or no text", call);
    }
    Json arguments = call_arguments(function, call + ".function");
    if (arguments.is_string() && !forms.takes_text_arguments) {
      arguments = {{"arguments", std::move(arguments)}};
    }
    function["arguments"] = std::move(arguments);
  }
}

// Null if it is not the text of a JSON value of this type.
Json value_of_type(std::string_view text, std::string_view what, Json::value_t type) {
  try {
    Json value = parse_ordered_json(text, what);
    if (value.type() == type) return value;
  } catch (const Error&) {
    // The reader's text gives advice about files.
  }
  return nullptr;
}

Json parse_of_type(std::string_view text, std::string_view what, Json::value_t type,
                   std::string_view type_name) {
  Json value = value_of_type(text, what, type);
  if (!value.is_null()) return value;
  refuse("{} is \"{}\"; it must be the text of a JSON {}, with no key twice", what, printable(text),
         type_name);
}

// Templates read one of the three names. The first that is given counts, as in transformers.
void prepare_thoughts(Json& message, const std::string& place) {
  constexpr std::array<const char*, 3> kNames = {"reasoning_content", "thinking", "reasoning"};
  Json thoughts;
  for (const char* name : kNames) {
    const auto given = message.find(name);
    if (given == message.end()) continue;
    if (given->is_null()) {
      message.erase(given);
      continue;
    }
    if (!given->is_string())
      refuse("{}.{} is {}; it must be a text", place, name, describe_json(*given));
    if (thoughts.is_null()) thoughts = *given;
  }
  if (thoughts.is_null()) return;
  message["reasoning_content"] = thoughts;
  for (const char* name : {"thinking", "reasoning"}) {
    if (!message.contains(name)) message[name] = thoughts;
  }
}

// The results at the front of `results` that belong to a call are taken out of it.
void move_results(const Json& call, Json& results, Json& messages) {
  const auto id = call.find("id");
  if (id == call.end() || id->is_null()) return;
  for (auto result = results.begin(); result != results.end();) {
    if (result->value("tool_call_id", Json()) != *id) {
      ++result;
      continue;
    }
    messages.push_back(std::move(*result));
    result = results.erase(result);
  }
}

// Makes one message of each call, each with its results behind it, as if the model had waited for
// them. Results without a call of theirs stay behind the last.
Json with_single_calls(Json&& messages) {
  Json single = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const size_t num_calls = message.contains("tool_calls") ? message["tool_calls"].size() : 0;
    if (num_calls < 2) {
      single.push_back(std::move(message));
      continue;
    }
    Json results = Json::array();
    while (i + 1 < messages.size() && messages[i + 1]["role"] == "tool") {
      results.push_back(std::move(messages[++i]));
    }
    const Json calls = std::exchange(message["tool_calls"], Json());
    for (const Json& call : calls) {
      message["tool_calls"] = Json::array({call});
      single.push_back(std::exchange(message, {{"role", "assistant"}, {"content", ""}}));
      move_results(call, results, single);
    }
    for (Json& result : results) single.push_back(std::move(result));
  }
  return single;
}

}  // namespace

Json call_arguments(const Json& function, std::string_view place) {
  const auto given = function.find("arguments");
  if (given == function.end() || given->is_null()) return Json::object();
  if (given->is_object()) return *given;
  const std::string what = fmt::format("{}.arguments", place);
  if (!given->is_string()) refuse("{} is {}; it must be an object", what, describe_json(*given));
  const auto& text = given->get_ref<const std::string&>();
  if (text.empty()) return Json::object();
  Json value = value_of_type(text, what, Json::value_t::object);
  return value.is_null() ? *given : value;
}

Json parse_object(std::string_view text, std::string_view what) {
  return parse_of_type(text, what, Json::value_t::object, "object");
}

Json parse_list(std::string_view text, std::string_view what) {
  return parse_of_type(text, what, Json::value_t::array, "list");
}

Json prepare_messages(const Json& messages, const TemplateForms& forms) {
  if (!messages.is_array()) refuse("messages is {}; it must be a list", describe_json(messages));
  if (messages.empty()) refuse("a conversation has no messages; give it at least one");
  Json prepared = messages;
  for (size_t i = 0; i < prepared.size(); ++i) {
    const std::string place = fmt::format("messages[{}]", i);
    Json& message = prepared[i];
    if (!message.is_object())
      refuse("{} is {}; it must be an object", place, describe_json(message));
    prepare_role(message, place);
    const auto role = message["role"].get<std::string>();
    prepare_content(message, place, std::ranges::count(forms.part_roles, role) > 0);
    prepare_calls(message, place, forms);
    prepare_thoughts(message, place);
    const bool is_empty = message["content"] == "" && !message.contains("tool_calls");
    const bool is_last = i + 1 == prepared.size();
    if (role == "assistant" && is_empty && !is_last) message["content"] = forms.empty_answer;
  }
  return forms.takes_several_calls ? prepared : with_single_calls(std::move(prepared));
}

void check_tools(const Json& tools) {
  if (!tools.is_array()) refuse("tools is {}; it must be a list", describe_json(tools));
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object())
      refuse("tools[{}] is {}; it must be an object", i, describe_json(tools[i]));
  }
}

Json& final_text(Json& messages) {
  Json& message = messages.back();
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) return *content;
  if (content != message.end() && content->is_array() && !content->empty()) {
    return content->back()["text"];
  }
  refuse("continue_final_message needs a last message with a text");
}

}  // namespace sluice
