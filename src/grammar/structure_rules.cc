// Each kind of structure as rules.
#include "grammar/structure_rules.h"

#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/call_rules.h"
#include "grammar/grammar.h"
#include "grammar/rules/rule_reader.h"
#include "grammar/rules/rule_writer.h"
#include "grammar/schema/schema_grammar.h"
#include "grammar/tag_rules.h"

namespace sluice {
namespace {

// Anchors at the ends change nothing: the whole answer matches.
std::string rules_of_regex(const std::string& regex) {
  const Automaton texts = of_regex(regex, RegexUse::kWhole);
  if (texts.empty()) fail(ErrorCode::kInvalidArgument, "regular expression: no text matches it");
  RuleWriter rules;
  rules.set("root", rules.add_plain("text", texts));
  return std::move(rules).finish();
}

std::string rules_of_choices(const std::vector<std::string>& choices) {
  if (choices.empty()) fail(ErrorCode::kInvalidArgument, "choice: it is empty; give texts");
  std::vector<std::string> literals;
  size_t num_bytes = 0;
  for (const std::string& choice : choices) {
    if (choice.empty()) fail(ErrorCode::kInvalidArgument, "choice: a text is empty; leave it out");
    literals.push_back(rule_literal(choice));
    num_bytes += literals.back().size();
  }
  if (num_bytes > kMaxLiteralBytes) {
    fail(ErrorCode::kInvalidArgument, "choice: texts take more than {} KiB; give fewer",
         kMaxLiteralBytes >> 10);
  }
  RuleWriter rules;
  rules.set("root", rule_choice(literals));
  return std::move(rules).finish();
}

void check_size(const StructuredOutput& structure) {
  size_t num_bytes = structure.text.size();
  for (const std::string& choice : structure.choices) num_bytes += choice.size();
  if (structure.calls) {
    for (const CallableFunction& function : structure.calls->functions) {
      num_bytes += function.name.size() + function.parameters.size();
    }
  }
  if (num_bytes <= kMaxStructureBytes) return;
  fail(ErrorCode::kInvalidArgument, "structured output: {} bytes; at most {} are read", num_bytes,
       kMaxStructureBytes);
}

// What stands instead of calls has its own rules, whose lenient schema may ignore more. It is JSON:
// the text of another grammar could look like a call, and its notation allows more than RuleWriter
// can rename.
StructureRules rules_of_calls(const StructuredOutput& structure) {
  if (!structure.calls) fail(ErrorCode::kInvalidArgument, "calls: they are missing");
  StructureRules or_else;
  if (const auto& other = structure.calls->or_else) {
    const bool is_json =
        other->kind == StructureKind::kJsonSchema || other->kind == StructureKind::kJsonObject;
    if (!is_json || !structure.calls->is_required) {
      fail(ErrorCode::kInvalidArgument, "calls: what may stand instead of them is JSON");
    }
    or_else = structure_rules(*other);
  }
  std::vector<std::string> ignored = std::move(or_else.ignored);
  std::string rules = call_rules(*structure.calls, or_else.rules, ignored);
  return {std::move(rules), std::move(ignored)};
}

}  // namespace

// Any JSON object is that of a schema.
StructureRules structure_rules(const StructuredOutput& structure) {
  check_size(structure);
  switch (structure.kind) {
    case StructureKind::kRegex:
      return {rules_of_regex(structure.text), {}};
    case StructureKind::kChoice:
      return {rules_of_choices(structure.choices), {}};
    case StructureKind::kGrammar:
      read_rules(structure.text);  // for its errors
      return {structure.text, {}};
    case StructureKind::kCalls:
      return rules_of_calls(structure);
    case StructureKind::kStructuralTag:
    case StructureKind::kJsonSchema:
    case StructureKind::kJsonObject:
      break;
  }
  Refusals refusals(structure.is_lenient);
  if (structure.kind == StructureKind::kStructuralTag) {
    std::string tags = tag_rules(structure.text, refusals);
    return {std::move(tags), refusals.ignored()};
  }
  const bool is_any = structure.kind == StructureKind::kJsonObject;
  std::string rules = schema_grammar(is_any ? R"({"type":"object"})" : structure.text, refusals);
  return {std::move(rules), refusals.ignored()};
}

}  // namespace sluice
