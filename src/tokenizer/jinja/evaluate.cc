// Expressions.
#include <algorithm>

#include "core/printable.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/tests.h"

namespace sluice::jinja {

using Kind = Node::Kind;

// Every expression costs one unit of the budget, and its depth is bounded: templates come from
// files that anyone may have written.
Value Interpreter::evaluate(const Node& node) {
  run_.spend(1);
  run_.line = node.line;
  enter();
  Value value = evaluate_kind(node);
  --nesting_;
  return value;
}

Value Interpreter::evaluate_kind(const Node& node) {
  switch (node.kind) {
    case Kind::kConst:
      return node.constant;
    case Kind::kName:
      return variable(node);
    case Kind::kList:
    case Kind::kTuple:
      return sequence(node);
    case Kind::kDict:
      return dictionary(node);
    case Kind::kUnary:
      return unary(node);
    case Kind::kBinary:
      return binary(node);
    case Kind::kCompare:
      return comparison(node);
    case Kind::kConcat:
      return concat(node);
    case Kind::kCondition:
      if (evaluate(*node.children[1]).truth()) return evaluate(*node.children[0]);
      return node.children.size() == 3 ? evaluate(*node.children[2]) : Value();
    case Kind::kMember:
      return get_member(run_, evaluate(*node.children[0]), node.text);
    case Kind::kItem:
      return item(node);
    case Kind::kSlice:
      return part(node);
    case Kind::kCall:
      return call(node);
    case Kind::kFilter:
      return filter(node, nullptr);
    default:
      SLUICE_CHECK(node.kind == Kind::kTest, "not an expression");
      return test(node);
  }
}

// A variable hides a function of its name. What is neither is undefined, which is no error before
// it is used.
Value Interpreter::variable(const Node& node) {
  if (const Value* value = scopes_.find(node.name)) return *value;
  if (is_function(node.text) && (node.text != "strftime_now" || now_)) {
    return function_value(node.text);
  }
  return Undefined{&node.text};
}

Value Interpreter::unary(const Node& node) {
  const Value operand = evaluate(*node.children[0]);
  if (node.op == Op::kNot) return !operand.truth();
  return signed_number(run_, node.op, operand);
}

// `and` and `or` give one of their operands, as in Python, and evaluate the second one only if
// needed.
Value Interpreter::binary(const Node& node) {
  Value left = evaluate(*node.children[0]);
  if (node.op == Op::kAnd && !left.truth()) return left;
  if (node.op == Op::kOr && left.truth()) return left;
  Value right = evaluate(*node.children[1]);
  if (node.op == Op::kAnd || node.op == Op::kOr) return right;
  run_.line = node.line;
  return arithmetic(run_, node.op, left, right);
}

// a < b < c: each operand once, up to the first link that is false.
Value Interpreter::comparison(const Node& node) {
  Value left = evaluate(*node.children[0]);
  for (size_t i = 0; i < node.ops.size(); ++i) {
    Value right = evaluate(*node.children[i + 1]);
    if (!compare(run_, node.ops[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::concat(const Node& node) {
  MarkedText text;
  for (const NodePtr& child : node.children) {
    text.append(to_text(run_, evaluate(*child)));
    run_.spend_text(text.size());
  }
  return text;
}

Value Interpreter::item(const Node& node) {
  const Value object = evaluate(*node.children[0]);
  const Node& index = *node.children[1];
  const Value position = evaluate(index);
  // A literal index names the element in errors about undefined values.
  const Node& named = index.kind == Kind::kConst ? *node.children[0] : index;
  return get_item(run_, object, position, named.text.empty() ? nullptr : &named.text);
}

// object[first:end:step], each of which may be absent.
Value Interpreter::part(const Node& node) {
  const Value object = evaluate(*node.children[0]);
  Value bounds[3];
  const Value* given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (!node.children[i + 1]) continue;
    bounds[i] = evaluate(*node.children[i + 1]);
    given[i] = &bounds[i];
  }
  return slice(run_, object, given[0], given[1], given[2]);
}

Value Interpreter::sequence(const Node& node) {
  std::vector<Value> items;
  for (const NodePtr& child : node.children) items.push_back(evaluate(*child));
  return make_list(run_, std::move(items),
                   node.kind == Kind::kTuple ? List::Kind::kTuple : List::Kind::kList);
}

Value Interpreter::dictionary(const Node& node) {
  std::vector<std::pair<Value::Text, Value>> items;
  for (size_t i = 0; i < node.children.size(); i += 2) {
    const Value key = evaluate(*node.children[i]);
    if (!key.is_text()) run_.fail("a key of a dict is {}; it must be a text", key.type_name());
    items.emplace_back(key.shared_text(), evaluate(*node.children[i + 1]));
  }
  return make_dict(run_, std::move(items));
}

Args Interpreter::evaluate_arguments(const Node& node) {
  Args args;
  for (const Argument& argument : node.arguments) {
    Value value = evaluate(*argument.value);
    if (argument.name.empty()) {
      args.positional.push_back(std::move(value));
    } else if (argument.name == "*") {
      for (Value& item : elements(run_, value)) args.positional.push_back(std::move(item));
    } else if (argument.name == "**") {
      unpack_dict(value, args);
    } else {
      args.named.emplace_back(argument.name, std::move(value));
    }
  }
  return args;
}

void Interpreter::unpack_dict(const Value& value, Args& args) const {
  const Dict* dict = value.dict();
  if (!dict) run_.fail("** unpacks {}; it takes a dict", value.type_name());
  const size_t num_before = args.named.size();
  for (const auto& [key, item] : dict->items) {
    run_.spend(1 + num_before);
    const auto end = args.named.begin() + static_cast<ptrdiff_t>(num_before);
    if (std::any_of(args.named.begin(), end,
                    [&, k = key](const auto& named) { return named.first == k->bytes(); })) {
      run_.fail("{} is given by name and by **", printable(key->bytes()));
    }
    args.names.push_back(key);
    args.named.emplace_back(key->bytes(), item);
  }
}

Value Interpreter::call(const Node& node) {
  const Node& callee = *node.children[0];
  if (callee.kind == Kind::kMember) {
    const Value object = evaluate(*callee.children[0]);
    if (object.is_undefined()) return get_member(run_, object, callee.text);
    const Args args = evaluate_arguments(node);
    run_.line = node.line;
    if (has_method(object, callee.text)) return call_method(run_, object, callee.text, args);
    run_.fail("{} has no method {}", object.type_name(), printable(callee.text));
  }
  const Value function = evaluate(callee);
  const Args args = evaluate_arguments(node);
  run_.line = node.line;
  if (const Loop* loop = function.loop()) return call_loop(*loop, args);
  const auto* callable = function.get<Callable>();
  if (callable && callable->macro) return call_macro(*callable, args);
  if (callable && callable->joiner) return call_joiner(run_, *callable->joiner, args);
  if (callable && !callable->function.empty()) {
    return call_function(run_, callable->function, args, now_);
  }
  if (function.is_undefined()) run_.fail("\"{}\" is undefined", printable(callee.text));
  run_.fail("{} cannot be called", function.type_name());
}

void Interpreter::count_call() {
  if (++num_calls_ > kMaxDepth) {
    run_.fail("macros and loops call each other more than {} deep", kMaxDepth);
  }
}

Value Interpreter::run_call_block(const Node& node) {
  const Node& call = *node.children[1];
  const Value function = evaluate(*call.children[0]);
  Args args = evaluate_arguments(call);
  run_.line = node.line;
  const auto* callable = function.get<Callable>();
  if (!callable || !callable->macro) {
    run_.fail("a call block calls {}, which is {}; it takes a macro",
              printable(call.children[0]->text), function.type_name());
  }
  args.named.emplace_back("caller", macro_here(node));
  return call_macro(*callable, args);
}

Value Interpreter::call_loop(const Loop& loop, const Args& args) {
  const Parameters parameters(run_, "loop", args, {"iterable"});
  if (!loop.statement->recursive) run_.fail("loop() is called in a loop that is not recursive");
  count_call();
  std::vector<Value> items = elements(run_, parameters.need(0));
  MarkedText before = std::exchange(out_, {});
  scopes_.push(loop.scope);
  run_items(*loop.statement, std::move(items), loop.depth0 + 1);
  scopes_.pop();
  --num_calls_;
  return std::exchange(out_, std::move(before));
}

Value Interpreter::call_macro(const Callable& macro, const Args& args) {
  const Node& node = *macro.macro;
  if (!scopes_.alive(macro.scope, macro.scope_serial)) {
    run_.fail("the macro {} is called outside of the block that defines it", node.text);
  }
  count_call();
  check_arguments(node, args);
  MarkedText before = std::exchange(out_, {});
  scopes_.push(macro.scope);
  bind_arguments(node, args);
  run_body(*node.children[0]);
  scopes_.pop();
  --num_calls_;
  return std::exchange(out_, std::move(before));
}

bool Interpreter::test(const Node& node) {
  const Value input = evaluate(*node.children[0]);
  const Args args = evaluate_arguments(node);
  run_.line = node.line;
  return node.test->apply({run_, node.test->name, input, args}) != node.negated;
}

Value Interpreter::filter(const Node& node, const Value* input) {
  const Node* inner = node.children[0].get();
  // The chain of a block ends in a filter without an input.
  Value value = !inner                                  ? *input
                : input && inner->kind == Kind::kFilter ? filter(*inner, input)
                                                        : evaluate(*inner);
  const Args args = evaluate_arguments(node);
  run_.line = node.line;
  return node.filter->apply({run_, node.filter->name, value, args});
}

}  // namespace sluice::jinja
