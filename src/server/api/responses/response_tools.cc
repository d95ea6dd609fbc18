// Errors name the tool as the client wrote it. What check_tools finds later is about all tools
// together: their size, and names that became too long with their namespace.
#include "server/api/responses/response_tools.h"

#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "io/json.h"
#include "server/api/request/body_reader.h"
#include "server/api/request/skipped_types.h"
#include "server/api/responses/response_text.h"

namespace sluice::api {
namespace {

constexpr size_t kMaxFunctions = 512;

class ToolReader {
 public:
  void add(const Json& tool, const std::string& place) {
    const std::string type = text_member(tool, "type", place);
    if (type == "function") {
      add_function(tool, place, "");
    } else if (type == "namespace") {
      add_space(tool, place);
    } else {
      return skipped_.add(type);
    }
    tools_.told.push_back(tool);
  }

  ResponseTools take() {
    tools_.skipped = skipped_.take();
    return std::move(tools_);
  }

 private:
  // The description of a namespace has no place in a chat; that of each function stays.
  void add_space(const Json& tool, const std::string& place) {
    const std::string space = text_member(tool, "name", place);
    const auto list = tool.find("tools");
    if (list == tool.end() || !list->is_array()) {
      refuse_field(place, fmt::format("{}.tools is {}; it must be a list of tools", place,
                                      list == tool.end() ? "missing" : describe_json(*list)));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string inner = fmt::format("{}.tools[{}]", place, i);
      const Json& one = (*list)[i];
      if (!one.is_object()) {
        refuse_field(inner,
                     fmt::format("{} is {}; it must be an object", inner, describe_json(one)));
      }
      const std::string type = text_member(one, "type", inner);
      type == "function" ? add_function(one, inner, space) : skipped_.add(type);
    }
  }

  // Templates write the whole object, so it has what a model needs and nothing else.
  void add_function(const Json& tool, const std::string& place, const std::string& space) {
    const std::string name = text_member(tool, "name", place);
    const std::string flat = flat_name(space, name);
    if (name.empty() || !names_.insert(flat).second) {
      refuse_field(place, fmt::format("{}.name is {}; each function must have a name of its own",
                                      place, describe_json(name)));
    }
    if (names_.size() > kMaxFunctions) {
      refuse_field(place, fmt::format("tools has more than {} functions", kMaxFunctions));
    }
    if (!space.empty()) tools_.in_spaces[flat] = {space, name};
    if (is_strict(tool)) tools_.strict.push_back(flat);
    Json function;
    function["name"] = flat;
    const std::string description = optional_text(tool, "description", place);
    if (!description.empty()) function["description"] = description;
    const auto parameters = tool.find("parameters");
    if (parameters != tool.end() && !parameters->is_null()) {
      if (!parameters->is_object()) {
        refuse_field(place, fmt::format("{}.parameters is {}; it must be an object", place,
                                        describe_json(*parameters)));
      }
      function["parameters"] = *parameters;
    }
    tools_.functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }

  ResponseTools tools_;
  std::set<std::string> names_;
  SkippedTypes skipped_;
};

}  // namespace

ResponseTools read_tools(const Json& tools) {
  ToolReader reader;
  for (size_t i = 0; i < tools.size(); ++i) reader.add(tools[i], fmt::format("tools[{}]", i));
  return reader.take();
}

}  // namespace sluice::api
