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
  // Up to the first break or continue, which it returns for the loop around it.
  Flow run_body(const Node& body);
  Flow run_statement(const Node& node);
  Flow run_if(const Node& node);
  Flow run_for(const Node& node);
  // The loop over these items, `depth0` calls of loop() deep; the else body if there are none.
  Flow run_items(const Node& node, std::vector<Value> items, int64_t depth0);
  // Once for each item, in a scope of its own: what the body sets is gone with the next item.
  Flow run_loop_body(const Node& node, std::vector<Value>& items, int64_t depth0);
  // The values see the scope around the block, the body one of its own.
  Flow run_with(const Node& node);
  void keep_matching(const Node& node, std::vector<Value>& items);
  // Appends a value to the output as text, with its marks.
  void write(const Value& value);
  // To a name, to the names of a tuple, or to a member of a namespace, which alone outlives a loop.
  void assign(const Node& target, Value value);
  // A macro sees the scope in which it was defined, not that of its caller.
  void define_macro(const Node& node);
  Callable macro_here(const Node& node) const;
  // What a body writes, in a scope of its own.
  MarkedText capture(const Node& body);

  // Expressions.
  // Counts a step and a level, and sets the line that errors name. The others are for one kind of
  // node each.
  Value evaluate(const Node& node);
  Value evaluate_kind(const Node& node);
  // What is set under the name, else the function of this name, else an undefined value.
  Value variable(const Node& node);
  Value unary(const Node& node);
  // "and" and "or" evaluate their right side only if it decides, and give a value, not a bool.
  Value binary(const Node& node);
  Value comparison(const Node& node);
  Value concat(const Node& node);
  Value item(const Node& node);  // x[i]
  Value part(const Node& node);  // x[i:j:k]
  Value sequence(const Node& node);
  Value dictionary(const Node& node);
  // Of a method, a macro, a function, a joiner or a recursive loop.
  Value call(const Node& node);
  // What the macro writes.
  Value call_macro(const Callable& macro, const Args& args);
  void check_arguments(const Node& macro, const Args& args) const;
  // Sets the parameters, whose defaults are evaluated at each call, in the macro's scope.
  void bind_arguments(const Node& macro, const Args& args);
  // What the macro writes that a call block calls.
  Value run_call_block(const Node& node);
  // loop(items): what the loop writes for other items.
  Value call_loop(const Loop& loop, const Args& args);
  void count_call();
  bool test(const Node& node);
  // Applies the filters of a chain to an input, or to the chain's own if it has one.
  Value filter(const Node& node, const Value* input);
  Args evaluate_arguments(const Node& node);
  // Adds the items of a dict as named arguments. Errors: kInvalidArgument for a name that is there.
  void unpack_dict(const Value& value, Args& args) const;

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
