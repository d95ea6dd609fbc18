// Statements. Source: jinja2's compiler.py for scopes.
#include "tokenizer/jinja/interpreter.h"

#include <algorithm>
#include <utility>

#include "tokenizer/jinja/format.h"

namespace sluice::jinja {

using Kind = Node::Kind;

// Names are numbers in the tree. A template that never says `loop` has none for it, and its loops
// need not define one.
Interpreter::Interpreter(const Tree& tree, Run& run, const std::tm* now)
    : tree_(tree), run_(run), now_(now) {
  const auto at = std::find(tree.names.begin(), tree.names.end(), "loop");
  if (at != tree.names.end()) loop_name_ = static_cast<NameId>(at - tree.names.begin());
}

// A variable that the template does not mention needs no place.
void Interpreter::define(std::string_view name, Value value) {
  const auto at = std::find(tree_.names.begin(), tree_.names.end(), name);
  if (at == tree_.names.end()) return;
  scopes_.set(static_cast<NameId>(at - tree_.names.begin()), std::move(value));
}

MarkedText Interpreter::render() {
  run_body(*tree_.root);
  return std::move(out_);
}

// An error leaves the count too high, which does not matter: the rendering has ended.
void Interpreter::enter() {
  if (++nesting_ > kMaxNesting) {
    run_.fail("statements, expressions and macros are nested more than {} deep", kMaxNesting);
  }
}

// Returns early with kBreak or kContinue, which the innermost loop takes.
Interpreter::Flow Interpreter::run_body(const Node& body) {
  enter();
  Flow flow = Flow::kNext;
  for (const NodePtr& statement : body.children) {
    flow = run_statement(*statement);
    if (flow != Flow::kNext) break;
  }
  --nesting_;
  return flow;
}

Interpreter::Flow Interpreter::run_statement(const Node& node) {
  run_.line = node.line;
  run_.spend(1);
  switch (node.kind) {
    case Kind::kText:
      out_.append(node.text, false);
      run_.spend_text(node.text.size());
      run_.check_size(out_.size());
      break;
    case Kind::kOutput:
      write(evaluate(*node.children[0]));
      break;
    case Kind::kIf:
      return run_if(node);
    case Kind::kFor:
      return run_for(node);
    case Kind::kWith:
      return run_with(node);
    case Kind::kCallBlock:
      write(run_call_block(node));
      break;
    case Kind::kSet:
      assign(*node.children[0], evaluate(*node.children[1]));
      break;
    case Kind::kSetBlock: {
      const Value text = capture(*node.children[1]);
      assign(*node.children[0], node.children[2] ? filter(*node.children[2], &text) : text);
      break;
    }
    case Kind::kMacro:
      define_macro(node);
      break;
    case Kind::kFilterBlock: {
      const Value text = capture(*node.children[1]);
      write(filter(*node.children[0], &text));
      break;
    }
    case Kind::kScope:
      write(capture(*node.children[0]));
      break;
    case Kind::kBreak:
      return Flow::kBreak;
    default:
      SLUICE_CHECK(node.kind == Kind::kContinue, "not a statement");
      return Flow::kContinue;
  }
  return Flow::kNext;
}

// Children: condition and body in turn, then the body of `else` if there is one.
Interpreter::Flow Interpreter::run_if(const Node& node) {
  const size_t size = node.children.size();
  size_t i = 0;
  while (i + 1 < size && !evaluate(*node.children[i]).truth()) i += 2;
  if (i >= size) return Flow::kNext;
  return run_body(*node.children[i + 1 < size ? i + 1 : i]);
}

// Keeps the items for which the loop's condition is true.
void Interpreter::keep_matching(const Node& node, std::vector<Value>& items) {
  std::erase_if(items, [&](const Value& item) {
    scopes_.push();
    assign(*node.children[0], item);
    const bool keeps = evaluate(*node.children[2]).truth();
    scopes_.pop();
    return !keeps;
  });
}

Interpreter::Flow Interpreter::run_for(const Node& node) {
  return run_items(node, elements(run_, evaluate(*node.children[1])), 0);
}

// Children of a loop: target, what to iterate, condition, body, body of `else`; those that are
// absent are null. `else` runs where no item is left, not where the loop was broken off.
Interpreter::Flow Interpreter::run_items(const Node& node, std::vector<Value> items,
                                         int64_t depth0) {
  if (node.children[2]) keep_matching(node, items);
  if (!items.empty()) return run_loop_body(node, items, depth0);
  if (!node.children[4]) return Flow::kNext;
  scopes_.push();
  const Flow flow = run_body(*node.children[4]);
  scopes_.pop();
  return flow;
}

// Each round has a scope of its own, as in Jinja: what is set in one is not seen by the next.
Interpreter::Flow Interpreter::run_loop_body(const Node& node, std::vector<Value>& items,
                                             int64_t depth0) {
  Loop loop{.items = &items, .statement = &node, .scope = scopes_.top(), .depth0 = depth0};
  Flow flow = Flow::kNext;
  for (; loop.index0 < items.size() && flow != Flow::kBreak; ++loop.index0) {
    run_.spend(1);
    scopes_.push();
    if (loop_name_ >= 0) scopes_.set(loop_name_, static_cast<const Loop*>(&loop));
    assign(*node.children[0], items[loop.index0]);
    flow = run_body(*node.children[3]);
    scopes_.pop();
  }
  return Flow::kNext;
}

// All values are evaluated before any is assigned, so that none sees another.
Interpreter::Flow Interpreter::run_with(const Node& node) {
  const size_t size = node.children.size();
  std::vector<Value> values;
  for (size_t i = 1; i < size; i += 2) values.push_back(evaluate(*node.children[i]));
  scopes_.push();
  for (size_t i = 0; i < values.size(); ++i) assign(*node.children[2 * i], std::move(values[i]));
  const Flow flow = run_body(*node.children[size - 1]);
  scopes_.pop();
  return flow;
}

// The budget counts what is written, and the limit is checked at once: a short template can ask for
// gigabytes.
void Interpreter::write(const Value& value) {
  const size_t before = out_.size();
  if (const MarkedText* text = value.text()) {
    out_.append(*text);
  } else {
    out_.append(to_text(run_, value));
  }
  run_.spend_text(out_.size() - before);
  run_.check_size(out_.size());
}

// To a name, to as many names as there are items, or to a member of a namespace, the only value
// that outlives its scope. A namespace in itself would never be freed.
void Interpreter::assign(const Node& target, Value value) {
  if (target.kind == Kind::kName) return scopes_.set(target.name, std::move(value));
  if (target.kind == Kind::kTuple) {
    std::vector<Value> items = elements(run_, value);
    if (items.size() != target.children.size()) {
      run_.fail("{} values are assigned to {} names", items.size(), target.children.size());
    }
    for (size_t i = 0; i < items.size(); ++i) assign(*target.children[i], std::move(items[i]));
    return;
  }
  const Value owner = variable(*target.children[0]);
  const auto* space = owner.get<Namespace>();
  if (!space) run_.fail("{} has no members to set; namespace() has", owner.type_name());
  if (value.is<Namespace>() || value.loop())
    run_.fail("a namespace cannot contain {}", value.type_name());
  run_.spend(1 + space->members->items.size());
  space->members->set(make_text(target.text).shared_text(), std::move(value));
}

void Interpreter::define_macro(const Node& node) { scopes_.set(node.name, macro_here(node)); }

// A macro sees the variables of where it is defined; the serial number tells whether that scope is
// still the same when it is called.
Callable Interpreter::macro_here(const Node& node) const {
  Callable macro;
  macro.macro = &node;
  macro.scope = scopes_.top();
  macro.scope_serial = scopes_.serial_of(macro.scope);
  return macro;
}

// What a body would write, as a value.
MarkedText Interpreter::capture(const Node& body) {
  MarkedText before = std::exchange(out_, {});
  scopes_.push();
  run_body(body);
  scopes_.pop();
  return std::exchange(out_, std::move(before));
}

}  // namespace sluice::jinja
