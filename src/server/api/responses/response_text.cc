#include "server/api/responses/response_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "io/json.h"
#include "io/json_type.h"

namespace sluice::api {

std::string text_member(const Json& object, std::string_view name, std::string_view place) {
  const auto member = object.find(name);
  if (member != object.end() && member->is_string()) return member->get<std::string>();
  refuse_field(place, fmt::format("{}.{} is {}; it must be a text", place, name,
                                  member == object.end() ? "missing" : describe_json(*member)));
}

std::string optional_text(const Json& object, std::string_view name, std::string_view place) {
  const auto member = object.find(name);
  if (member == object.end() || member->is_null()) return {};
  return text_member(object, name, place);
}

// Images, sounds and files are parts, too; the type of the first one that is no text is named.
std::string joined_text(const Json& content, std::span<const std::string_view> types,
                        const std::string& place) {
  if (content.is_null()) return {};
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    refuse_field(place, fmt::format("{} is {}; it must be a text or a list of parts", place,
                                    describe_json(content)));
  }
  std::string joined;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", place, i);
    if (!content[i].is_object()) {
      refuse_field(part,
                   fmt::format("{} is {}; it must be an object", part, describe_json(content[i])));
    }
    const std::string type = text_member(content[i], "type", part);
    if (std::ranges::find(types, type) == types.end()) {
      refuse_field(part, fmt::format("{}.type is {}; it must be {}", part, describe_json(type),
                                     fmt::join(types, " or ")));
    }
    if (i > 0) joined += '\n';
    const auto text = content[i].find("text");
    if (text != content[i].end() && text->is_null()) continue;
    joined += text_member(content[i], "text", part);
  }
  return joined;
}

}  // namespace sluice::api
