// First which functions count and what their arguments must be, then what else an answer may have.
#include "server/app/structured_calls.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "io/json_type.h"
#include "tokenizer/calls/call_form.h"

namespace sluice::server {
namespace {

using api::ChatRequest;
using api::ToolChoice;
using StructurePtr = std::shared_ptr<const StructuredOutput>;

// Of short lists: the tools of a request are at most some hundreds.
bool is_among(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// The model is told of all tools, so that its prompt stays in the cache whatever the choice is.
bool may_call(const ChatRequest& request, const std::string& name) {
  return request.allowed_tools.empty() || is_among(request.allowed_tools, name);
}

// From the beginning of the answer on, so that nothing else may be said.
bool must_call(const ChatRequest& request) {
  return request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed;
}

// The schema of a function that is not strict counts only if it must be called: then a model that
// has not meant to call it needs its help.
std::vector<CallableFunction> callable_functions(const ChatRequest& request) {
  std::vector<CallableFunction> functions;
  const api::Json& tools = request.conversation.tools;
  for (size_t i = 0; i < tools.size(); ++i) {
    const api::Json& tool = tools[i].at("function");
    CallableFunction function{.name = tool.at("name").get<std::string>(),
                              .parameters = {},
                              .place = fmt::format("tools[{}]", i)};
    if (!may_call(request, function.name)) continue;
    function.is_lenient = !is_among(request.strict_tools, function.name);
    const auto parameters = tool.find("parameters");
    const bool has_schema = parameters != tool.end() && !parameters->is_null();
    if (has_schema && (must_call(request) || !function.is_lenient)) {
      function.parameters = parameters->dump();
    }
    functions.push_back(std::move(function));
  }
  return functions;
}

// One message for all reasons, so that clients find the field.
http::Fault fault_of_choice(const std::string& why) {
  return {.message = fmt::format("tool_choice asks for a call, but {}", why),
          .param = "tool_choice"};
}

// A structure of JSON and calls cannot be told apart where both begin with a brace. Other
// structures could say anything, the marker of a call as well, and nothing of theirs would be an
// answer then.
bool can_stand_beside(const StructuredOutput& structure, ToolFormat format) {
  const bool is_json =
      structure.kind == StructureKind::kJsonSchema || structure.kind == StructureKind::kJsonObject;
  return is_json && format != ToolFormat::kNone && !call_form(format).marker.empty();
}

}  // namespace

CallableTools callable_tools(const ChatRequest& request, ToolFormat format) {
  CallableTools tools;
  if (request.tool_choice == ToolChoice::kNone) return tools;
  for (const auto& tool : request.conversation.tools) {
    const api::Json& function = tool.at("function");
    CallableTool callable(function.at("name").get<std::string>());
    if (!may_call(request, callable.name)) continue;
    const auto parameters = function.find("parameters");
    if (format == ToolFormat::kQwen3Coder && parameters != function.end()) {
      callable.parameters = std::make_shared<const api::Json>(*parameters);
    }
    tools.push_back(std::move(callable));
  }
  return tools;
}

// A format without calls leaves strict functions free: no answer of it has a call that could break
// the promise.
api::Read<StructurePtr> structured_calls(const ChatRequest& request, ToolFormat format) {
  const StructurePtr& structure = request.params.structured;
  const CallableTools tools = callable_tools(request, ToolFormat::kNone);
  if (tools.empty()) return structure;
  if (must_call(request) && structure) {
    return fault_of_choice("the answer has a structure of its own; leave one out");
  }
  if (must_call(request) && format == ToolFormat::kNone) {
    return fault_of_choice(
        "it is not known how this model writes calls; set --tool-call-parser of the server, or "
        "tool_choice to auto");
  }
  if (structure && !can_stand_beside(*structure, format)) {
    return http::Fault{.message =
                           "tools that may be called and structured output exclude each "
                           "other, but for JSON of models that write calls as hermes has "
                           "them; set tool_choice to none or leave one out"};
  }
  const bool is_held = must_call(request) || structure || !request.allowed_tools.empty() ||
                       std::ranges::any_of(tools, [&](const CallableTool& tool) {
                         return is_among(request.strict_tools, tool.name);
                       });
  if (!is_held || format == ToolFormat::kNone) return StructurePtr();
  StructuredCalls calls{
      .form = call_form(format),
      .functions = callable_functions(request),
      .is_required = must_call(request) || structure,
      .is_single = request.tool_choice == ToolChoice::kNamed || !request.parallel_tool_calls,
      .or_else = structure};
  StructuredOutput all{.kind = StructureKind::kCalls};
  all.calls = std::make_shared<const StructuredCalls>(std::move(calls));
  return std::make_shared<const StructuredOutput>(std::move(all));
}

}  // namespace sluice::server
