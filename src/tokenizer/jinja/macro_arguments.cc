// The arguments of a macro. Source: jinja2's runtime.py, class Macro.
#include <algorithm>

#include "core/printable.h"
#include "tokenizer/jinja/interpreter.h"

namespace sluice::jinja {
namespace {

const std::string kCaller = "caller";

// Whether a named argument is that of a parameter without a positional one.
bool is_parameter(const Node& macro, const Args& args, std::string_view name) {
  const size_t first = std::min(args.positional.size(), macro.arguments.size());
  return std::any_of(macro.arguments.begin() + static_cast<ptrdiff_t>(first), macro.arguments.end(),
                     [&](const Argument& argument) { return argument.name == name; });
}

// The named arguments that no parameter takes.
std::vector<std::pair<std::string_view, Value>> further(const Node& macro, const Args& args) {
  std::vector<std::pair<std::string_view, Value>> out;
  for (const auto& argument : args.named) {
    const bool is_caller = macro.caller >= 0 && argument.first == kCaller;
    if (!is_caller && !is_parameter(macro, args, argument.first)) out.push_back(argument);
  }
  return out;
}

const Value* find_named(const Args& args, std::string_view name) {
  const auto at = std::find_if(args.named.begin(), args.named.end(),
                               [&](const auto& argument) { return argument.first == name; });
  return at == args.named.end() ? nullptr : &at->second;
}

}  // namespace

void Interpreter::check_arguments(const Node& macro, const Args& args) const {
  if (macro.varargs < 0 && args.positional.size() > macro.arguments.size()) {
    run_.fail("the macro {} takes {} arguments", macro.text, macro.arguments.size());
  }
  if (macro.kwargs >= 0) return;
  for (const auto& [name, value] : further(macro, args)) {
    run_.fail("the macro {} has no argument {}, or it is given twice", macro.text, printable(name));
  }
}

void Interpreter::bind_arguments(const Node& macro, const Args& args) {
  const size_t size = macro.arguments.size();
  for (size_t i = 0; i < size; ++i) {
    const Argument& parameter = macro.arguments[i];
    const Value* named = find_named(args, parameter.name);
    Value value = i < args.positional.size() ? args.positional[i]
                  : named                    ? *named
                  : parameter.value          ? evaluate(*parameter.value)
                                             : Value(Undefined{&parameter.name});
    scopes_.set(macro.parameters[i], std::move(value));
  }
  if (macro.varargs >= 0) {
    const size_t first = std::min(size, args.positional.size());
    std::vector<Value> rest(args.positional.begin() + static_cast<ptrdiff_t>(first),
                            args.positional.end());
    scopes_.set(macro.varargs, make_list(run_, std::move(rest), List::Kind::kTuple));
  }
  if (macro.kwargs >= 0) {
    std::vector<std::pair<Value::Text, Value>> rest;
    for (const auto& [name, value] : further(macro, args)) {
      rest.emplace_back(name_text(run_, args, name), value);
    }
    scopes_.set(macro.kwargs, make_dict(run_, std::move(rest)));
  }
  if (macro.caller >= 0) {
    const Value* caller = find_named(args, kCaller);
    scopes_.set(macro.caller, caller ? *caller : Value(Undefined{&kCaller}));
  }
}

}  // namespace sluice::jinja
