// StructuredOutput: what the text of an answer must be.
//
// A member of SamplingParams; the names are those of vLLM's StructuredOutputsParams. The engine
// masks tokens that lead away from it, ends the text when it is complete, and refuses what it
// cannot enforce (docs/structured_output.md). Thread rule: a value.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace sluice {

enum class StructureKind {
  kJsonSchema,     // a JSON document that the schema in `text` allows
  kJsonObject,     // any JSON object
  kRegex,          // the whole answer matches the regular expression in `text`
  kChoice,         // one of `choices`
  kGrammar,        // the rules in `text`, in EBNF, from "root" on
  kCalls,          // calls of functions, as `calls` says
  kStructuralTag,  // free text with tags in it, as the structural tag in `text`, a JSON text, says
};

struct StructuredOutput;

// A function that an answer may call.
struct CallableFunction {
  std::string name;
  std::string parameters;   // a JSON schema of its arguments, an object; empty: any object
  bool is_lenient = false;  // as StructuredOutput::is_lenient
  std::string place;        // what errors say of where it is: "tools[3]"

  bool operator==(const CallableFunction&) const = default;
};

// How arguments are written that are not JSON: a parameter is `begin`, its name, `middle`, its
// value, `end`. Texts stand without quotes, and have no `mark` in them; other values are JSON.
struct ParameterForm {
  std::string begin;
  std::string middle;
  std::string end;
  std::string mark;

  bool operator==(const ParameterForm&) const = default;
};

// How a model writes calls.
struct CallForm {
  // A call is `begin`, the name within quotes, `middle`, the arguments, `end`.
  std::string begin;
  std::string middle;
  std::string end;
  std::string between;  // two calls
  // `begin` begins with it, and wherever it comes in a text a call has begun. Empty: calls are all
  // of an answer, and an answer with a match of the regular expression `opening` is calls.
  std::string marker;
  std::string opening;
  std::optional<ParameterForm> parameters;  // names have no quotes then

  bool operator==(const CallForm&) const = default;
};

// The calls of an answer, and what else it may have. With a marker a free answer goes on after a
// call, with text or another call, unless it may have one alone; without one, calls are separated
// as `between` has it, and nothing else is said.
struct StructuredCalls {
  CallForm form;
  std::vector<CallableFunction> functions;
  bool is_required = true;  // false: the answer may also be a text in which no call begins
  bool is_single = false;   // one call ends the answer
  // What the answer may be instead of calls; JSON only, and with is_required.
  std::shared_ptr<const StructuredOutput> or_else;

  bool operator==(const StructuredCalls&) const = default;
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
  bool starts_in_thought = false;                // the prompt has opened one
  std::shared_ptr<const StructuredCalls> calls;  // of kCalls

  bool operator==(const StructuredOutput&) const = default;
};

}  // namespace sluice
