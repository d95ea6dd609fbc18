// StructuredOutput: what the text of an answer must be, whatever the model would rather say.
//
// A member of SamplingParams; the names are those of vLLM's StructuredOutputsParams. The engine
// masks tokens that lead away from it, ends the text when it is complete, and refuses what it
// cannot enforce (docs/structured_output.md). Thread rule: a value.
#pragma once

#include <string>
#include <vector>

namespace sluice {

enum class StructureKind {
  kJsonSchema,  // a JSON document that the schema in `text` allows
  kJsonObject,  // any JSON object
  kRegex,       // the whole answer matches the regular expression in `text`
  kChoice,      // one of `choices`
  kGrammar,     // the rules in `text`, in EBNF, from "root" on
};

struct StructuredOutput {
  StructureKind kind = StructureKind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  // Ignores what a schema asks for and cannot be enforced, instead of refusing it.
  bool is_lenient = false;
  // The answer may begin with a thought, which is free: `thought_end` closes it, and the structure
  // begins after that. Both are texts of single tokens; empty: no thoughts.
  std::string thought_begin;
  std::string thought_end;
  bool starts_in_thought = false;  // the prompt has opened one

  bool operator==(const StructuredOutput&) const = default;
};

}  // namespace sluice
