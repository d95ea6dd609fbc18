// Node: the syntax tree of a template.
//
// Made by the parser, read by the interpreter. Thread rule: never changes after parsing.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

struct FilterEntry;  // filters.h
struct TestEntry;    // tests.h
struct Node;
using NodePtr = std::unique_ptr<Node>;
using Nodes = std::vector<NodePtr>;

// An identifier of a variable: its index in Tree::names.
using NameId = int;

struct Argument {
  std::string name;  // empty for a positional one; "*" and "**" for what is unpacked in a call
  NodePtr value;
};

enum class Op {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kAnd,
  kOr,
  kNot,
  kNeg,
  kPos,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn
};

// What the members of a node mean depends on its kind; those not named are empty.
struct Node {
  enum class Kind {
    // Expressions.
    kConst,      // constant
    kName,       // name, text: a variable
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value
    kUnary,      // op, children: operand
    kBinary,     // op, children: left, right
    kCompare,    // children: operands; ops between them
    kConcat,     // children, joined as texts (~)
    kCondition,  // children: value, condition, [value otherwise]
    kMember,     // children: object; text: the name (x.name)
    kItem,       // children: object, index (x[index])
    kSlice,      // children: object, begin, end, step; null where not given (x[a:b:c])
    kCall,       // children: callee; arguments (* last of the positional ones, ** last of all)
    kFilter,     // children: input (null in a block's chain); filter, arguments
    kTest,       // children: input; test, arguments; negated
    // Statements.
    kText,         // text: written unchanged
    kOutput,       // children: expression
    kIf,           // children: condition, body, condition, body ...; [else body]; bodies are kBody
    kFor,          // children: target, iterable, condition or null, body, else body or null;
                   // recursive
    kWith,         // children: target, value, target, value ...; body
    kSet,          // children: target, value
    kSetBlock,     // children: target, body, filter or null
    kMacro,        // name, text; arguments: parameters, their defaults or null; caller, varargs,
                   // kwargs; children: body
    kCallBlock,    // the same for what caller() runs, without a name; children: body, call
    kFilterBlock,  // children: filter, body
    kScope,        // children: body: {% generation %}
    kBreak,
    kContinue,
    kBody  // children: statements
  };

  Kind kind = Kind::kBody;
  int line = 1;
  int depth = 1;  // one more than that of the deepest child
  Op op = Op::kAdd;
  bool negated = false;
  bool recursive = false;
  NameId name = -1;
  // The variables of these names, -1 if the body does not mention them.
  NameId caller = -1;
  NameId varargs = -1;
  NameId kwargs = -1;
  const FilterEntry* filter = nullptr;
  const TestEntry* test = nullptr;
  std::string text;
  Value constant;
  Nodes children;
  std::vector<Op> ops;
  std::vector<Argument> arguments;
  std::vector<NameId> parameters;  // of a macro, in the order of `arguments`
};

struct Tree {
  NodePtr root;                    // a kBody
  std::vector<std::string> names;  // of all variables
};

}  // namespace sluice::jinja
