// One rule for each function; what stands around calls depends on what is asked for.
#include "grammar/call_rules.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/rules/rule_writer.h"
#include "grammar/schema/schema_grammar.h"
#include "io/json.h"
#include "io/json_type.h"

namespace sluice {
namespace {

constexpr std::string_view kObject = R"({"type":"object"})";

// Arguments are an object, whether their schema says so or not.
std::string schema_of_arguments(const std::string& parameters) {
  if (parameters.empty()) return std::string(kObject);
  Json schema;
  try {
    schema = parse_ordered_json(parameters, "schema");
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidArgument, "schema: {}", error.message());
  }
  if (schema == Json(true)) return std::string(kObject);
  if (!schema.is_object()) {
    fail(ErrorCode::kInvalidArgument, "schema: it is {}; it must be an object",
         describe_json(schema));
  }
  const auto type = schema.find("type");
  const bool allows_object =
      type == schema.end() || *type == "object" ||
      (type->is_array() && std::ranges::find(*type, "object") != type->end());
  if (!allows_object) {
    fail(ErrorCode::kInvalidArgument,
         "schema: type at its root is {}; arguments are an object, so it must be \"object\"",
         describe_json(*type));
  }
  schema["type"] = "object";
  return schema.dump();
}

std::string arguments_rule(RuleWriter& rules, const CallForm& form,
                           const CallableFunction& function, std::vector<std::string>& ignored) {
  const std::string place = fmt::format("{} ({})", function.place, function.name);
  Refusals refusals(function.is_lenient);
  try {
    const std::string schema = schema_of_arguments(function.parameters);
    const ParameterForm* const parameters = form.parameters ? &*form.parameters : nullptr;
    std::string root = rules.add_grammar(schema_grammar(schema, refusals, parameters));
    for (const std::string& what : refusals.ignored()) {
      ignored.push_back(fmt::format("{}: {}", place, what));
    }
    return root;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", place, error.message()));
  }
}

// A text of the form, or no element at all where the form has no text: an empty one is no element
// of a rule.
std::string literal_or_nothing(std::string_view text) {
  return text.empty() ? std::string() : rule_literal(text) + ' ';
}

// A name without quotes ends where `middle` begins, so it may have none of its characters.
std::string name_in_call(RuleWriter& rules, const CallForm& form,
                         const CallableFunction& function) {
  if (!form.parameters) return quoted_literal(rules, function.name);
  if (function.name.empty() || function.name.find_first_of("<>\n") != function.name.npos) {
    fail(ErrorCode::kInvalidArgument,
         "{} ({}): the model writes names without quotes, so this one cannot be called; give one "
         "without <, > and line ends",
         function.place, function.name);
  }
  return rule_literal(function.name);
}

// What all functions have in common is written once: names and arguments then differ only where
// they must, and a model has one way to begin.
std::string call_rule(RuleWriter& rules, const StructuredCalls& calls, std::string_view begin,
                      std::vector<std::string>& ignored) {
  const CallForm& form = calls.form;
  std::vector<std::string> functions;
  for (const CallableFunction& function : calls.functions) {
    const std::string arguments = arguments_rule(rules, form, function, ignored);
    functions.push_back(
        rules.add("call", fmt::format("{} {}{}", name_in_call(rules, form, function),
                                      literal_or_nothing(form.middle), arguments)));
  }
  return rules.add("any_call", fmt::format("{}{} {}", literal_or_nothing(begin),
                                           rule_choice(functions), literal_or_nothing(form.end)));
}

// From the beginning on. A template may have up to two line ends before the first call, after a
// thought for example.
std::string only_calls(RuleWriter& rules, const StructuredCalls& calls,
                       std::vector<std::string>& ignored) {
  const std::string call = call_rule(rules, calls, calls.form.begin, ignored);
  const std::string between = literal_or_nothing(calls.form.between);
  const std::string more = calls.is_single ? "" : fmt::format(" ({}{})*", between, call);
  return rules.add("calls", fmt::format(R"([\n]{{0,2}} {}{})", call, more));
}

// Free text up to the marker, wherever it is in a token.
std::string text_and_calls(RuleWriter& rules, const StructuredCalls& calls,
                           std::vector<std::string>& ignored) {
  const CallForm& form = calls.form;
  if (!form.begin.starts_with(form.marker)) {
    fail(ErrorCode::kInvalidArgument, "calls: begin must begin with the marker");
  }
  const std::string text = rules.add_plain("text", without_part(form.marker));
  const std::string call = call_rule(rules, calls, form.begin, ignored);
  return fmt::format("{} | {} {} {}", text, text, call, calls.is_single ? "" : "root");
}

// Calls, or a text that is none from its beginning on.
std::string text_or_calls(RuleWriter& rules, const StructuredCalls& calls,
                          std::vector<std::string>& ignored) {
  const Automaton all = of_lengths(0, -1);
  const Automaton text = without(all, of_regex(calls.form.opening, RegexUse::kAnywhere));
  return fmt::format("{} | {}", rules.add_plain("text", text), only_calls(rules, calls, ignored));
}

}  // namespace

std::string call_rules(const StructuredCalls& calls, const std::string& or_else,
                       std::vector<std::string>& ignored) {
  if (calls.functions.empty()) {
    fail(ErrorCode::kInvalidArgument, "calls: there is no function; give one");
  }
  RuleWriter rules;
  std::string root;
  if (calls.is_required) {
    root = or_else.empty() ? "" : rules.add_grammar(or_else) + " | ";
    root += only_calls(rules, calls, ignored);
  } else if (calls.form.marker.empty()) {
    root = text_or_calls(rules, calls, ignored);
  } else {
    root = text_and_calls(rules, calls, ignored);
  }
  rules.set("root", root);
  return std::move(rules).finish();
}

}  // namespace sluice
