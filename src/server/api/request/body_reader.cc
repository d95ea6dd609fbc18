#include "server/api/request/body_reader.h"

#include <algorithm>

#include "io/json.h"
#include "tokenizer/chat_template.h"

namespace sluice::api {
namespace {

constexpr size_t kMaxToolBytes = size_t{4} << 20;
constexpr size_t kMaxFunctionName = 256;

// What calls are recognised by, and what every template reads. The rest belongs to the template.
void check_function(const Json& tool, size_t index) {
  const std::string place = fmt::format("tools[{}]", index);
  const auto type = tool.find("type");
  if (type != tool.end() && *type != "function") {
    refuse_field(
        place, fmt::format("{}.type is {}; it must be \"function\"", place, describe_json(*type)));
  }
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) {
    refuse_field(place, fmt::format("{}.function is missing or no object", place));
  }
  const auto name = function->find("name");
  const bool has_name = name != function->end() && name->is_string() &&
                        !name->get_ref<const std::string&>().empty() &&
                        name->get_ref<const std::string&>().size() <= kMaxFunctionName;
  if (!has_name) {
    refuse_field(
        place,
        fmt::format("{}.function.name is {}; it must be a text of 1 to {} bytes", place,
                    name == function->end() ? "missing" : describe_json(*name), kMaxFunctionName));
  }
  const auto parameters = function->find("parameters");
  if (parameters == function->end() || parameters->is_null() || parameters->is_object()) return;
  refuse_field(place, fmt::format("{}.function.parameters is {}; it must be an object", place,
                                  describe_json(*parameters)));
}

}  // namespace

// `place` may have an index or a name after the field: "stop[3]".
http::Fault fault_of_field(const Error& error) {
  const std::string& place = error.context();
  return {.status = 400, .message = error.message(), .param = place.substr(0, place.find('['))};
}

// The reader's errors are about files of models and have the code of those.
Json parse_body(std::string_view body) {
  constexpr std::string_view kName = "the request's body";
  Json value;
  try {
    value = parse_ordered_json(body, kName);
  } catch (const Error& error) {
    refuse_field("", error.what());
  }
  if (!value.is_object()) {
    refuse_field("", fmt::format("{} is {}; it must be an object", kName, describe_json(value)));
  }
  return value;
}

// Their text is measured as it would be written without spaces.
void check_tools(Json& tools) {
  if (tools.empty()) {
    tools = nullptr;
    return;
  }
  for (size_t i = 0; i < tools.size(); ++i) check_function(tools[i], i);
  const size_t num_bytes = tools.dump().size();
  if (num_bytes <= kMaxToolBytes) return;
  refuse_field("tools", fmt::format("tools has {} bytes; it must have at most {}", num_bytes,
                                    kMaxToolBytes));
}

bool is_strict(const Json& object) {
  const auto strict = object.find("strict");
  return strict != object.end() && *strict == true;
}

// Those that it reads and that the request sets in another way stay: the renderer refuses them.
void drop_unread_variables(const ChatTemplate& chat, Conversation& conversation,
                           UnknownFields& unknown) {
  Json read = Json::object();
  for (auto& [name, value] : conversation.template_kwargs.items()) {
    if (chat.reads(name)) {
      read[name] = std::move(value);
    } else {
      unknown.add("chat_template_kwargs." + name);
    }
  }
  conversation.template_kwargs = std::move(read);
}

void drop_unread_tools(const ChatTemplate& chat, ChatRequest& request) {
  if (request.tool_choice == ToolChoice::kNone && !chat.reads("tools")) {
    request.conversation.tools = nullptr;
  }
}

}  // namespace sluice::api
