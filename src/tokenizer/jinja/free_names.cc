// Walks the tree in the order of execution with the set of names that are assigned on every way to
// the present statement. Bodies have scopes of their own, as in the interpreter.
#include "tokenizer/jinja/free_names.h"

#include <algorithm>

#include "tokenizer/jinja/functions.h"

namespace sluice::jinja {
namespace {

using Kind = Node::Kind;
using Names = std::vector<bool>;  // by NameId

class Walk {
 public:
  explicit Walk(const Tree& tree)
      : tree_(tree),
        loop_(std::find(tree.names.begin(), tree.names.end(), "loop") - tree.names.begin()),
        macros_(tree.names.size(), false),
        free_(tree.names.size(), false) {
    find_macros(*tree.root);
    Names assigned(tree.names.size(), false);
    run(*tree.root, assigned);
  }

  std::vector<std::string> sorted() const {
    std::vector<std::string> names;
    for (size_t id = 0; id < free_.size(); ++id) {
      if (free_[id] && !is_function(tree_.names[id])) names.push_back(tree_.names[id]);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  void find_macros(const Node& node) {
    if (node.kind == Kind::kMacro) macros_[index(node.name)] = true;
    for (const NodePtr& child : node.children) {
      if (child) find_macros(*child);
    }
  }

  // Notes what an expression looks up.
  void read(const Node& node, const Names& assigned) {
    if (node.kind == Kind::kName && !assigned[index(node.name)]) free_[index(node.name)] = true;
    for (const NodePtr& child : node.children) {
      if (child) read(*child, assigned);
    }
    for (const Argument& argument : node.arguments) read(*argument.value, assigned);
  }

  // A target; that of ns.x = ... looks up ns.
  void assign(const Node& target, Names& assigned) {
    if (target.kind == Kind::kName) {
      assigned[index(target.name)] = true;
    } else if (target.kind == Kind::kTuple) {
      for (const NodePtr& child : target.children) assign(*child, assigned);
    } else {
      read(target, assigned);
    }
  }

  // {{ raise_exception(...) }}
  static bool is_refusal(const Node& node) {
    return node.kind == Kind::kOutput && node.children[0]->kind == Kind::kCall &&
           node.children[0]->children[0]->text == "raise_exception";
  }

  // A body whose assignments end with it.
  void run_scope(const Node& body, Names assigned) { run(body, assigned); }

  void run(const Node& node, Names& assigned) {
    switch (node.kind) {
      case Kind::kBody:
        for (const NodePtr& statement : node.children) run(*statement, assigned);
        break;
      case Kind::kIf:
        run_if(node, assigned);
        break;
      case Kind::kFor:
        run_for(node, assigned);
        break;
      case Kind::kSet:
        read(*node.children[1], assigned);
        assign(*node.children[0], assigned);
        break;
      case Kind::kSetBlock:
        run_scope(*node.children[1], assigned);
        if (node.children[2]) read(*node.children[2], assigned);
        assign(*node.children[0], assigned);
        break;
      case Kind::kWith:
        run_with(node, assigned);
        break;
      case Kind::kMacro:
        assigned[index(node.name)] = true;
        run_macro(node, assigned);
        break;
      case Kind::kCallBlock:
        read(*node.children[1], assigned);
        run_macro(node, assigned);
        break;
      case Kind::kFilterBlock:
        run_scope(*node.children[1], assigned);
        read(*node.children[0], assigned);
        break;
      case Kind::kScope:
        run_scope(*node.children[0], assigned);
        break;
      default:  // an output; the others have no children
        read(node, assigned);
        if (is_refusal(node)) assigned.assign(assigned.size(), true);  // nothing follows it
    }
  }

  // After it only those names are assigned that every branch assigns.
  void run_if(const Node& node, Names& assigned) {
    const size_t size = node.children.size();
    Names common;
    const auto run_branch = [&](const Node* body) {
      Names branch = assigned;
      if (body) run(*body, branch);
      if (common.empty()) {
        common = std::move(branch);
      } else {
        for (size_t id = 0; id < common.size(); ++id) common[id] = common[id] && branch[id];
      }
    };
    for (size_t i = 0; i + 1 < size; i += 2) {
      read(*node.children[i], assigned);
      run_branch(node.children[i + 1].get());
    }
    run_branch(size % 2 == 1 ? node.children.back().get() : nullptr);
    assigned = std::move(common);
  }

  void run_for(const Node& node, const Names& assigned) {
    read(*node.children[1], assigned);
    Names inner = assigned;
    assign(*node.children[0], inner);
    if (node.children[2]) read(*node.children[2], inner);
    if (loop_ < inner.size()) inner[loop_] = true;
    run(*node.children[3], inner);
    if (node.children[4]) run_scope(*node.children[4], assigned);
  }

  void run_with(const Node& node, Names inner) {
    const size_t size = node.children.size();
    for (size_t i = 1; i < size; i += 2) read(*node.children[i], inner);
    for (size_t i = 0; i + 1 < size; i += 2) assign(*node.children[i], inner);
    run(*node.children[size - 1], inner);
  }

  // A macro runs later than its definition: it may call macros that follow it.
  void run_macro(const Node& node, Names inner) {
    for (size_t id = 0; id < inner.size(); ++id) inner[id] = inner[id] || macros_[id];
    for (size_t i = 0; i < node.arguments.size(); ++i) {
      if (node.arguments[i].value) read(*node.arguments[i].value, inner);
      inner[index(node.parameters[i])] = true;
    }
    for (const NameId name : {node.caller, node.varargs, node.kwargs}) {
      if (name >= 0) inner[index(name)] = true;
    }
    run(*node.children[0], inner);
  }

  static size_t index(NameId name) { return static_cast<size_t>(name); }

  const Tree& tree_;
  const size_t loop_;  // the index of "loop"; that of no name if the template does not use it
  Names macros_;
  Names free_;
};

}  // namespace

std::vector<std::string> free_names(const Tree& tree) { return Walk(tree).sorted(); }

}  // namespace sluice::jinja
