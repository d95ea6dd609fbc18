// Interpreter: runs a parsed template once.
//
// Used by jinja::Template; statements are in interpreter.cc, expressions in evaluate.cc. Thread
// rule: one thread; the tree is only read.
#pragma once

#include <ctime>

#include "tokenizer/jinja/arguments.h"
#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/scopes.h"

namespace sluice::jinja {

// Nested statements and expressions in all active macros together; bounds the use of the stack.
inline constexpr int kMaxNesting = 1000;

class Interpreter {
 public:
  // `now` is the time of strftime_now, which is undefined without one.
  Interpreter(const Tree& tree, Run& run, const std::tm* now);

  // Gives a variable to the template; one that it does not use is ignored.
  void define(std::string_view name, Value value);

  // The text. Errors: kInvalidArgument that names the line, for what Python's jinja2 refuses,
  // raise_exception and the limits of run.h.
  MarkedText render();

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Counts one more level; the caller subtracts it.
  void enter();

  // Statements.
  Flow run_body(const Node& body);
  Flow run_statement(const Node& node);
  Flow run_if(const Node& node);
  Flow run_for(const Node& node);
  Flow run_loop_body(const Node& node, std::vector<Value>& items);
  void keep_matching(const Node& node, std::vector<Value>& items);
  void write(const Value& value);
  void assign(const Node& target, Value value);
  void define_macro(const Node& node);
  // What a body writes, in a scope of its own.
  MarkedText capture(const Node& body);

  // Expressions.
  Value evaluate(const Node& node);
  Value evaluate_kind(const Node& node);
  Value variable(const Node& node);
  Value unary(const Node& node);
  Value binary(const Node& node);
  Value comparison(const Node& node);
  Value concat(const Node& node);
  Value item(const Node& node);
  Value part(const Node& node);
  Value sequence(const Node& node);
  Value dictionary(const Node& node);
  Value call(const Node& node);
  Value call_macro(const Callable& macro, const Args& args);
  bool test(const Node& node);
  // Applies the filters of a chain to an input, or to the chain's own if it has one.
  Value filter(const Node& node, const Value* input);
  Args evaluate_arguments(const Node& node);

  const Tree& tree_;
  Run& run_;
  const std::tm* now_;
  Scopes scopes_;
  MarkedText out_;
  NameId loop_name_ = -1;  // of the variable "loop", if the template uses it
  int nesting_ = 0;
  int num_calls_ = 0;
};

}  // namespace sluice::jinja
